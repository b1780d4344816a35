{{- define "rouse.labels" -}}
app.kubernetes.io/name: rouse
app.kubernetes.io/component: gateway
app.kubernetes.io/part-of: rouse
{{- end }}

{{- define "rouse.selector" -}}
app.kubernetes.io/name: rouse
app.kubernetes.io/component: gateway
{{- end }}

{{- define "rouse.controllerLabels" -}}
app.kubernetes.io/name: rouse
app.kubernetes.io/component: controller
app.kubernetes.io/part-of: rouse
{{- end }}

{{- define "rouse.controllerSelector" -}}
app.kubernetes.io/name: rouse
app.kubernetes.io/component: controller
{{- end }}

{{- define "rouse.xdsLabels" -}}
app.kubernetes.io/name: rouse
app.kubernetes.io/component: xds
app.kubernetes.io/part-of: rouse
{{- end }}

{{- define "rouse.xdsSelector" -}}
app.kubernetes.io/name: rouse
app.kubernetes.io/component: xds
{{- end }}

{{- define "rouse.subjects" -}}
- kind: ServiceAccount
  name: rouse-gateway
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "rouse.rules" -}}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [services, pods]
  verbs: [list, watch]
- apiGroups: [http.keda.sh]
  resources: [interceptorroutes, httpscaledobjects]
  verbs: [list, watch]
- apiGroups: [http.keda.sh]
  resources: [interceptorroutes/status, httpscaledobjects/status]
  verbs: [patch]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [list]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list]
- apiGroups: [apps]
  resources: [deployments/scale, statefulsets/scale]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- /* The Secret with the certificate of the registration listener; empty if push is off. An upgrade with --reuse-values from
an older chart has no push at all: parentheses make that the same as off. */}}
{{- define "rouse.registerSecret" -}}
{{- if (.Values.push).enabled }}
{{- $made := ternary "rouse-register-tls" "" (not (empty (((.Values.push).certManager).issuerRef).name)) }}
{{- .Values.push.secretName | default $made | required "push.enabled needs push.secretName or push.certManager.issuerRef.name" }}
{{- end }}
{{- end }}

{{- /* The Secret with the certificate of the controller; empty if there is no controller, or none that gateways can report to. */}}
{{- define "rouse.controllerSecret" -}}
{{- if (.Values.controller).enabled }}
{{- $made := ternary "rouse-controller-tls" "" (not (empty (((.Values.controller).certManager).issuerRef).name)) }}
{{- .Values.controller.secretName | default $made }}
{{- end }}
{{- end }}

{{- /* The Secret with the certificate of rouse xds; empty if that is off. */}}
{{- define "rouse.xdsSecret" -}}
{{- if (.Values.xds).enabled }}
{{- $made := ternary "rouse-xds-tls" "" (not (empty (((.Values.xds).certManager).issuerRef).name)) }}
{{- .Values.xds.secretName | default $made | required "xds.enabled needs xds.secretName or xds.certManager.issuerRef.name" }}
{{- end }}
{{- end }}

//! The calls of KEDA's external scaler interface.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use tonic::{Request, Response, Status};

use super::ScalerParts;
use super::active_stream::{ActiveAnswers, ActiveStream, Followed};
use super::route_load::RouteLoad;
use super::trigger::{ScaledRoute, ScaledRouteKind, Trigger};
use crate::proto::externalscaler::external_scaler_server::ExternalScaler;
use crate::proto::externalscaler::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};

/// Answers KEDA.
pub(super) struct ScalerCalls(pub(super) Arc<ScalerParts>);

impl ScalerCalls {
    /// Reads the trigger, if the load of all gateways is known.
    fn trigger(&self, scaled_object: Option<&ScaledObjectRef>) -> Result<Trigger, Status> {
        let trigger = read(scaled_object)?;
        self.knows_load()?;
        Ok(trigger)
    }

    fn knows_load(&self) -> Result<(), Status> {
        if *self.0.serving.borrow() {
            return Ok(());
        }
        // Not "inactive": KEDA would scale down.
        Err(Status::unavailable(
            "this controller does not know the load of all gateways; another replica may",
        ))
    }

    fn find(&self, route: &ScaledRoute) -> Result<RouteLoad, Status> {
        let unknown = || {
            Status::not_found(format!(
                "{route} does not exist, or is not accepted: see its status conditions"
            ))
        };
        self.0.loads.find(route).ok_or_else(unknown)
    }

    fn active(&self, scaled_object: &ScaledObjectRef) -> Result<bool, Status> {
        let active = match read(Some(scaled_object))? {
            Trigger::Route(route) => self.0.loads.find(&route).is_some_and(|load| load.is_active()),
            Trigger::AllRoutes { .. } => *self.0.loads.follow_total().borrow() > 0,
        };
        if !active {
            self.knows_load()?;
        }
        Ok(active)
    }

    fn specs(&self, scaled_object: &ScaledObjectRef) -> Result<Vec<MetricSpec>, Status> {
        match self.trigger(Some(scaled_object))? {
            Trigger::AllRoutes { target, metric } => Ok(vec![whole_spec(metric, target)]),
            Trigger::Route(route) => {
                let load = self.find(&route)?;
                Ok(match route.kind {
                    ScaledRouteKind::InterceptorRoute => route_specs(&route, &load),
                    ScaledRouteKind::HttpScaledObject => {
                        let target = load.rate_target.or(load.concurrency_target).unwrap_or(DEFAULT_TARGET);
                        vec![whole_spec(route.object_metric(), whole(target))]
                    }
                })
            }
        }
    }

    fn values(&self, request: &GetMetricsRequest) -> Result<Vec<MetricValue>, Status> {
        match self.trigger(request.scaled_object_ref.as_ref())? {
            Trigger::AllRoutes { metric, .. } => {
                let total = *self.0.loads.follow_total().borrow();
                Ok(vec![whole_value(metric, saturating(total))])
            }
            Trigger::Route(route) => {
                let load = self.find(&route)?;
                Ok(match route.kind {
                    ScaledRouteKind::InterceptorRoute => {
                        let wanted = &request.metric_name;
                        let mut values = route_values(&route, &load);
                        // Without a name, all are asked for.
                        values.retain(|value| wanted.is_empty() || value.metric_name == *wanted);
                        values
                    }
                    ScaledRouteKind::HttpScaledObject => {
                        let value = if load.rate_target.is_some() {
                            whole(load.rate.ceil())
                        } else {
                            saturating(load.concurrency)
                        };
                        vec![whole_value(route.object_metric(), value)]
                    }
                })
            }
        }
    }

    fn stream(&self, scaled_object: &ScaledObjectRef) -> Result<ActiveAnswers, Status> {
        let trigger = read(Some(scaled_object))?;
        let place = self.0.place()?;
        let followed = match trigger {
            Trigger::Route(route) => Followed::Route(self.0.loads.follow(&route)),
            Trigger::AllRoutes { .. } => Followed::AllRoutes(self.0.loads.follow_total()),
        };
        let (serving, stop) = (self.0.serving.clone(), self.0.stop.clone());
        Ok(ActiveStream { followed, serving, stop, _place: place }.answers())
    }

    /// Counts and logs a call.
    fn answered<T>(
        &self,
        method: &'static str,
        scaled_object: Option<&ScaledObjectRef>,
        result: Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        self.0.metrics.count(method, &result);
        if let Err(status) = &result {
            // What a client names is printed only if it is a name.
            let named = scaled_object.filter(|_| status.code() != tonic::Code::InvalidArgument);
            let (namespace, scaled_object) = named.map_or(("", ""), |it| (&it.namespace, &it.name));
            let reason = status.message();
            tracing::warn!(method, namespace, scaled_object, reason, "cannot answer KEDA");
        }
        result.map(Response::new)
    }
}

fn read(scaled_object: Option<&ScaledObjectRef>) -> Result<Trigger, Status> {
    Trigger::read(scaled_object).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// The target of an `HTTPScaledObject` that has none, as in KEDA HTTP add-on.
const DEFAULT_TARGET: f64 = 100.0;

#[tonic::async_trait]
impl ExternalScaler for ScalerCalls {
    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        let scaled_object = request.get_ref();
        let result = self.active(scaled_object).map(|result| IsActiveResponse { result });
        self.answered("IsActive", Some(scaled_object), result)
    }

    type StreamIsActiveStream = ActiveAnswers;

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<ActiveAnswers>, Status> {
        let scaled_object = request.get_ref();
        self.answered("StreamIsActive", Some(scaled_object), self.stream(scaled_object))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let scaled_object = request.get_ref();
        let result = self.specs(scaled_object).map(|metric_specs| GetMetricSpecResponse { metric_specs });
        self.answered("GetMetricSpec", Some(scaled_object), result)
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let request = request.get_ref();
        let result = self.values(request).map(|metric_values| GetMetricsResponse { metric_values });
        self.answered("GetMetrics", request.scaled_object_ref.as_ref(), result)
    }

    type StreamMetricSpecStream = Pin<Box<dyn Stream<Item = Result<GetMetricSpecResponse, Status>> + Send>>;

    async fn stream_metric_spec(
        &self,
        _request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamMetricSpecStream>, Status> {
        // KEDA asks GetMetricSpec then.
        Err(Status::unimplemented("targets are read with GetMetricSpec"))
    }
}

fn route_specs(route: &ScaledRoute, load: &RouteLoad) -> Vec<MetricSpec> {
    let spec = |metric_name, target| MetricSpec { metric_name, target_size: 0, target_size_float: target };
    let concurrency = load.concurrency_target.map(|target| spec(route.concurrency_metric(), target));
    let rate = load.rate_target.map(|target| spec(route.rate_metric(), target));
    concurrency.into_iter().chain(rate).collect()
}

fn route_values(route: &ScaledRoute, load: &RouteLoad) -> Vec<MetricValue> {
    let value = |metric_name, value| MetricValue { metric_name, metric_value: 0, metric_value_float: value };
    #[allow(clippy::cast_precision_loss, reason = "exact up to 2^53 requests at a time")]
    let requests = load.concurrency as f64;
    let concurrency = load.concurrency_target.map(|_| value(route.concurrency_metric(), requests));
    let rate = load.rate_target.map(|_| value(route.rate_metric(), load.rate));
    concurrency.into_iter().chain(rate).collect()
}

fn whole_spec(metric_name: String, target_size: i64) -> MetricSpec {
    MetricSpec { metric_name, target_size, target_size_float: 0.0 }
}

fn whole_value(metric_name: String, metric_value: i64) -> MetricValue {
    MetricValue { metric_name, metric_value, metric_value_float: 0.0 }
}

/// A number without its fraction. Not a number: 0.
#[allow(clippy::cast_possible_truncation, reason = "a cast of a float saturates")]
fn whole(number: f64) -> i64 {
    number as i64
}

fn saturating(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

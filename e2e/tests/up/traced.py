"""An app that uses OpenTelemetry's SDK with its defaults, and answers with the span that it made of a request."""

import json
import os
from wsgiref.simple_server import WSGIRequestHandler, make_server

from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import TracerProvider

# The defaults: a parent-based sampler that records everything else, and W3C Trace Context.
trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("app")


def app(environ, start_response):
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    with tracer.start_as_current_span("request", context=extract(headers)) as span:
        context, parent = span.get_span_context(), getattr(span, "parent", None)
        seen = {
            "recording": span.is_recording(),
            "sampled": context.trace_flags.sampled,
            # A trace of its own has another id each time.
            "continued": "traceparent" in headers and f"{context.trace_id:032x}" in headers["traceparent"],
            "parent": parent and f"{parent.span_id:016x}",
            "state": context.trace_state.to_header(),
            "headers": {name: value for name, value in headers.items() if name.startswith("trace")},
        }
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(seen).encode()]


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


make_server(os.environ["HOST"], int(os.environ["PORT"]), app, handler_class=Quiet).serve_forever()

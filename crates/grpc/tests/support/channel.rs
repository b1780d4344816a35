//! An HTTP/2 connection, as the generated clients use it.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::client::conn::http2;

/// Sends the calls of a generated client over one connection.
#[derive(Clone)]
pub(crate) struct Http2Channel(pub(crate) http2::SendRequest<tonic::body::Body>);

impl tower_service::Service<http::Request<tonic::body::Body>> for Http2Channel {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

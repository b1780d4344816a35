//! Connects clients to the fake API server: in the same process as a tower service, or over TCP.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request as AxumRequest;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Answer, ApiRequest, ApiServer, InjectedFault};

impl ApiServer {
    /// Answers on a free port of 127.0.0.1 until the set of tasks is dropped.
    pub async fn serve(&self) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = self.clone();
        let router = Router::new().fallback(move |request: AxumRequest| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                if let Ok(answer) = server.respond(&head, &body).await {
                    return answer.map(axum::body::Body::new);
                }
                let mut response = Response::new(axum::body::Body::empty());
                *response.status_mut() = StatusCode::BAD_GATEWAY;
                response
            }
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        (address, tasks)
    }

    async fn respond(&self, head: &Parts, body: &[u8]) -> Result<Answer, io::Error> {
        let fault = self.trapped(&head.uri.to_string());
        match fault {
            Some(InjectedFault::Hang) => std::future::pending().await,
            Some(InjectedFault::Panic) => panic!("the test set a trap for this request"),
            Some(InjectedFault::LoseAnswer) | None => {}
        }
        let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok());
        let answer = self.answer(&ApiRequest {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(body).unwrap_or(Value::Null),
            content_type: content_type.unwrap_or_default().to_owned(),
        });
        if fault == Some(InjectedFault::LoseAnswer) {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "cut by the test"));
        }
        answer
    }
}

impl tower_service::Service<Request<Body>> for ApiServer {
    type Response = Answer;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            server.respond(&head, &body).await
        })
    }
}

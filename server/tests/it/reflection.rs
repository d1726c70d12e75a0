//! gRPC reflection, in both versions that tools use.

use crate::common::Server;

const SETTINGS: &str = "{ policies: { a: { q: 9/s } }, resource_limits: { request_bytes: 1000 } }";
const RATE_LIMITS: &str = "envoy.service.ratelimit.v3.RateLimitService";

macro_rules! tests_of {
    ($version:ident) => {
        mod $version {
            use tonic::transport::Channel;
            use tonic_reflection::pb::$version::ServerReflectionRequest;
            use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;

            use super::*;

            /// `None` if the service does not answer.
            async fn ask(server: &Server, message: MessageRequest) -> Option<MessageResponse> {
                let channel = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
                let mut client = ServerReflectionClient::new(channel.connect().await.unwrap());
                let message_request = Some(message);
                let request = ServerReflectionRequest { host: String::new(), message_request };
                let requests = futures_util::stream::iter([request]);
                let replies = client.server_reflection_info(requests).await.ok()?;
                replies.into_inner().message().await.ok()??.message_response
            }

            #[tokio::test]
            async fn the_service_is_described() {
                let server = Server::with_settings(SETTINGS);
                let list = MessageRequest::ListServices(String::new());
                let MessageResponse::ListServicesResponse(list) = ask(&server, list).await.unwrap()
                else {
                    panic!("no list");
                };
                let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
                for name in [RATE_LIMITS, "grpc.health.v1.Health"] {
                    assert!(names.iter().any(|other| other == name), "{names:?}");
                }
                let symbol = MessageRequest::FileContainingSymbol(RATE_LIMITS.to_owned());
                let file = ask(&server, symbol).await.unwrap();
                assert!(matches!(file, MessageResponse::FileDescriptorResponse(_)));
            }

            #[tokio::test]
            async fn large_messages_are_rejected() {
                let server = Server::with_settings(SETTINGS);
                for (length, is_answered) in [(500, true), (2_000, false)] {
                    let list = MessageRequest::ListServices("x".repeat(length));
                    assert_eq!(ask(&server, list).await.is_some(), is_answered, "{length}");
                }
            }
        }
    };
}

tests_of!(v1);
tests_of!(v1alpha);

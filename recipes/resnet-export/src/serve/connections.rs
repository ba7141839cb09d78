//! The sockets: accepting, limiting, and closing them.

use std::future::Future;
use std::io::{self, Write};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::options::Limits;
use super::routes::router;
use super::service::{Service, Shared};

/// What a connection beyond the limit is told.
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n\
    Content-Length: 77\r\nConnection: close\r\n\r\n\
    {\"error\":\"all connections are in use\",\"help\":\"try again soon, or close some\"}";
/// After the system refused a connection, for example because no more files may be open.
const PAUSE: Duration = Duration::from_millis(50);
/// A request's header; a client of this service needs some hundred bytes.
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 64;

/// Serves connections until `stop`; then lets those requests end that are under way, for as long as the limits say.
pub(super) async fn serve(
    listener: TcpListener,
    service: &Service,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let limits = service.shared.limits;
    let router = router(service);
    let free = Arc::new(Semaphore::new(limits.connections));
    let (stopping, watched) = watch::channel(());
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => accept(stream, &free, &service.shared, &router, &watched),
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    log::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
    }
    // From here on the system refuses connections, and a balancer takes another machine.
    drop(listener);
    service.shared.stopping.store(true, Ordering::Release);
    // Each connection watches this end.
    drop(stopping);
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    if timeout(limits.grace, free.acquire_many(all)).await.is_err() {
        log::warn!("requests were still under way {} s after the signal", limits.grace.as_secs());
    }
    Ok(())
}

fn accept(
    stream: TcpStream,
    free: &Arc<Semaphore>,
    shared: &Arc<Shared>,
    router: &Router,
    stopping: &watch::Receiver<()>,
) {
    let Ok(place) = Arc::clone(free).try_acquire_owned() else {
        shared.metrics.refused_connections.fetch_add(1, Ordering::Relaxed);
        refuse(stream);
        return;
    };
    if let Err(error) = prepare(&stream, &shared.limits) {
        log::debug!("a connection was lost at once: {error}");
        return;
    }
    let (shared, router, stopping) = (Arc::clone(shared), router.clone(), stopping.clone());
    tokio::spawn(async move {
        shared.metrics.connections.fetch_add(1, Ordering::Relaxed);
        connection(stream, router, shared.limits.client, stopping).await;
        shared.metrics.connections.fetch_sub(1, Ordering::Relaxed);
        drop(place);
    });
}

/// Says no without waiting: the socket's own memory takes the few bytes.
fn refuse(stream: TcpStream) {
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write_all(BUSY);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
}

fn prepare(stream: &TcpStream, limits: &Limits) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A client that does not take its answer would hold its connection for ever.
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(limits.client))
}

async fn connection(stream: TcpStream, router: Router, client: Duration, mut stopping: watch::Receiver<()>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // From the connection's start or the last answer to the end of the next header: of idle ones too.
        .header_read_timeout(client)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        // An answer that comes with the stop says that it is the last.
        biased;
        // Only ever an error: the sender is gone.
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        ended = connection.as_mut() => ended,
    };
    if let Err(error) = ended {
        log::debug!("a connection ended: {error}");
    }
}

fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::BUSY;

    #[test]
    fn the_answer_beyond_the_limit_is_as_long_as_it_says() {
        let text = std::str::from_utf8(BUSY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}

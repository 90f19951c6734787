//! Servers that answer more than was requested, or that name strangers as members of their Cluster.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use swarmkeep_redis::RedisRepository;
use swarmkeep_servers::{Cluster, Server};
use swarmkeep_store_tests::{
    A_MINUTE,
    programs::{REDIS, Trial},
    tests, until,
};

use tokio::task::JoinSet;

use crate::redis::{
    crowd::{finished, tell},
    stores::{RUNTIME, config, connect, impatient, listen, proxy, settings, started},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS]:
            redis_that_answers_more_than_was_requested_is_left_at_once,
            redis_cluster_does_not_lead_a_password_to_a_stranger,
    }
}

/// A proxy of a real server, on its own port. With `forged`, it answers in the server's place.
struct Proxy {
    port: u16,
    forged: Arc<Mutex<Option<ForgedAnswer>>>,
    /// The most bytes of its own answers on one connection.
    taken: Arc<AtomicUsize>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().expect("no panic")
}

/// The beginning of an answer, and a part that follows without end.
#[derive(Debug, Clone)]
struct ForgedAnswer(String, Option<&'static str>);

impl Proxy {
    fn start((listener, port): (TcpListener, u16), server: u16) -> Self {
        let started = Self { port, forged: Arc::default(), taken: Arc::default() };
        let (forged, taken) = (Arc::clone(&started.forged), Arc::clone(&started.taken));
        proxy(listener, server, move |call, client| {
            // The error would be about the password.
            let is_login = call.windows(4).any(|word| word == b"AUTH");
            let forged = locked(&forged).clone().filter(|_| !is_login);
            let Some(ForgedAnswer(first, then)) = forged else { return Ok(true) };
            let (mut piece, mut own) = (first, 0);
            // Endless, but for a test that fails.
            while own < 64 << 20 && client.write_all(piece.as_bytes()).is_ok() {
                own += piece.len();
                let Some(then) = then else { break };
                piece = then.repeat((1 << 14) / then.len());
            }
            taken.fetch_max(own, Relaxed);
            Ok(false)
        });
        started
    }

    /// Answers an announce with this until the error has the text `named`: a slow machine may have no answer
    /// in time before.
    async fn refusal(&self, store: &RedisRepository, forged: ForgedAnswer, named: &str) -> String {
        let (begin, mut said) = (Instant::now(), String::new());
        while !said.contains(named) {
            assert!(begin.elapsed() < A_MINUTE, "{forged:?}: {said}");
            if tell(store, &finished(1)).await.is_ok() {
                *locked(&self.forged) = Some(forged.clone());
                said = tell(store, &finished(1)).await.expect_err("no answer to an announce").reason;
                *locked(&self.forged) = None;
            }
        }
        said
    }
}

fn redis_that_answers_more_than_was_requested_is_left_at_once() {
    /// The size of the buffers of the sockets of both sides.
    const ON_ITS_WAY: usize = 16 << 20;
    let server = started(Server::start());
    let answers = [
        ("$500000000\r\n", Some("x"), "more"),
        ("*10000000\r\n", Some(":1\r\n"), "more"),
        ("*2\r\n$8\r\n12345678\r\n$500000000\r\n", Some("x"), "more"),
        ("*1\r\n", Some("*1\r\n"), "nested deeper"),
        ("+", Some("x"), "more"),
        (":", Some("1"), "a number of another form"),
        ("%1000000\r\n", Some("+a\r\n"), "another kind"),
    ];
    RUNTIME.block_on(async {
        let mut asked = JoinSet::new();
        for (first, then, named) in answers {
            let proxy = Proxy::start(listen(), server.port());
            let url = format!("redis://127.0.0.1:{}", proxy.port);
            let settings = impatient(settings([url]), 1000);
            asked.spawn(async move {
                let store = connect(&settings).await;
                let refused = proxy.refusal(&store, ForgedAnswer(first.into(), then), "than requested").await;
                let taken = proxy.taken.load(Relaxed);
                let shown = first.escape_debug();
                assert!(taken < ON_ITS_WAY, "{shown}: it took {taken} bytes: {refused}");
                let expected = [named, &format!("127.0.0.1:{}", proxy.port)];
                assert!(expected.iter().all(|part| refused.contains(part)), "{shown}: {refused}");
            });
        }
        asked.join_all().await;
    });
}

/// A stranger that listens for passwords.
fn stranger() -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).expect("an address of this machine");
    let port = listener.local_addr().expect("it is bound").port();
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let hears = Arc::clone(&heard);
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let hears = Arc::clone(&hears);
            thread::spawn(move || {
                let mut words = [0; 1024];
                while let Ok(len @ 1..) = client.read(&mut words) {
                    locked(&hears).extend(&words[..len]);
                    let _ = client.write_all(b"+OK\r\n");
                }
            });
        }
    });
    (port, heard)
}

fn redis_cluster_does_not_lead_a_password_to_a_stranger() {
    let (port, heard) = stranger();
    let (listener, at) = listen();
    let announced = at.to_string();
    let cluster = started(Cluster::start_with(
        1,
        0,
        &[("requirepass", "secret"), ("masterauth", "secret"), ("cluster-announce-port", &announced)],
    ));
    let proxy = Proxy::start((listener, at), cluster.server(0).port());
    let asks = impatient(settings([format!("redis://:secret@127.0.0.1:{at}")]), 1000);
    RUNTIME.block_on(async {
        // It is named while the store is used,
        let store = connect(&asks).await;
        for word in ["MOVED", "ASK"] {
            let named = format!("127.0.0.2:{port} is named by a server");
            let redirection = ForgedAnswer(format!("-{word} 1 127.0.0.2:{port}\r\n"), None);
            proxy.refusal(&store, redirection, &named).await;
            assert!(locked(&heard).is_empty(), "{word} to a stranger: {}", locked(&heard).escape_ascii());
        }
        tell(&store, &finished(1)).await.expect("the true server answers again");

        // or at the start.
        for (name, value) in
            [("cluster-announce-ip", "127.0.0.2"), ("cluster-announce-port", &port.to_string())]
        {
            cluster.server(0).command(&["CONFIG", "SET", name, value]).expect("it answers");
        }
        let refused = RedisRepository::connect(&asks, &config()).await.expect_err("it is one of them");
        let said = refused.to_string();
        assert!(locked(&heard).is_empty(), "said to a stranger: {}", locked(&heard).escape_ascii());
        assert!(said.contains(&format!("127.0.0.2:{port}")) && said.contains("rediss://"), "{said}");
        assert!(!said.contains("secret"), "{said}");
    });

    // A server of our own settings is no stranger.
    let urls = [format!("redis://:secret@127.0.0.1:{at}"), "redis://:secret@127.0.0.2:1".to_owned()];
    let asks = impatient(settings(urls), 400);
    until("it hears the password", || {
        RUNTIME.block_on(RedisRepository::connect(&asks, &config())).expect_err("it answers nothing of use");
        locked(&heard).escape_ascii().to_string().contains("secret")
    });
}

//! The beginning of the document.

use std::fs;

use swarmkeep_benches::origin::{commit, machine, today};
use swarmkeep_servers::Server;

use crate::Result;

/// Title, machine, server, command, and the columns of all tables.
pub(crate) fn introduction(command: &str, seconds: f64, turns: usize) -> Result<String> {
    let info = Server::start()?.info("all")?;
    let field = |name: &str| info.get(name).map_or("?", String::as_str);
    let program = if info.contains_key("valkey_version") { "Valkey" } else { "Redis" };
    let version = info.get("valkey_version").map_or_else(|| field("redis_version"), String::as_str);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Ok(format!(
        "# What the store on Redis costs\n\n\
         {}; {program} {version} with {};\n\
         default configuration except for snapshots; swarmkeep {}, {}; {}.\n\n\
         This command wrote the report. It starts the server on the loopback of this machine:\n\n\
         ```console\n$ {command}\n```\n\n\
         {BEGINNING}\n\n\
         Each run lasts {seconds} s. Compared runs take turns, {turns} of them, and the numbers are medians.\n\
         The load average of the machine was {} before the start. If it is not about 0, other programs affect all\n\
         numbers except processor time and bytes.\n",
        machine(),
        field("mem_allocator"),
        env!("CARGO_PKG_VERSION"),
        commit().as_deref().unwrap_or("no commit"),
        today(),
        load.split(' ').next().unwrap_or_default(),
    ))
}

const BEGINNING: &str = "\
**Server µs** is the processor time of the server's main thread per announce (`INFO cpu`). **Client µs** is
the processor time of all threads of the client. **Bytes** are the bytes on the server's connections (`INFO
stats`). The server has one core, and the client all others. If that is one core, the slower of the two limits
the end-to-end rate. **If the server were alone** is a million divided by the server µs: the rate with
clients on other machines.";

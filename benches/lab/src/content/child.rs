//! A process for each row: both ends of the pipe between the process that runs all and the one that measures.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};

use crate::content::{Error, Options, Result, Row, StoreSetup, row};

/// A line that the child writes.
#[derive(Debug, Serialize, Deserialize)]
enum ChildMessage {
    Progress(f64),
    Done(Row),
}

/// Measures a row in the process of `command`, which calls [`answer`] with its last argument.
pub(crate) fn ask(
    mut command: Command,
    options: &Options,
    way: StoreSetup,
    progress: &mut dyn FnMut(f64),
) -> Result<Row> {
    let plan = serde_json::to_string(&(options, way)).map_err(io::Error::from)?;
    let mut child =
        command.arg(plan).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut done = None;
    for line in BufReader::new(child.stdout.take().expect("it is piped")).lines() {
        match serde_json::from_str(&line?).map_err(io::Error::from)? {
            ChildMessage::Progress(share) => progress(share),
            ChildMessage::Done(row) => done = Some(row),
        }
    }
    let output = child.wait_with_output()?;
    done.filter(|_| output.status.success()).ok_or_else(|| {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let why = if why.is_empty() { output.status.to_string() } else { why };
        Error::Failed(format!("{}: {why}", way.name()))
    })
}

/// Measures the row of `ask`, and writes its lines to `out`.
pub fn answer(plan: &str, mut out: impl Write) -> Result<()> {
    let plan = serde_json::from_str(plan).map_err(|error| Error::Options(error.to_string()))?;
    let (options, way): (Options, StoreSetup) = plan;
    let row = row::measure(&options, way, &mut |share| {
        // If the reader is gone, the last line fails.
        let _ = write(&mut out, &ChildMessage::Progress(share));
    })?;
    Ok(write(&mut out, &ChildMessage::Done(row))?)
}

fn write(out: &mut impl Write, line: &ChildMessage) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

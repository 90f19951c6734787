//! A process for each row: both ends of the pipe between the one that runs all and the one that measures.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};

use crate::content::{Error, Outcome, Plan, Result};

/// A line that the child writes.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Progress(f64),
    Done(Outcome),
}

/// Measures a plan in a process that `command` starts when it is given the plan as its last argument; it
/// calls [`answer`] with it.
///
/// # Errors
/// [`Error::Child`] with what the process wrote to its standard error.
pub fn ask(mut command: Command, plan: &Plan, progress: &mut dyn FnMut(f64)) -> Result<Outcome> {
    let failed = |what: String| Error::Child { plan: plan.to_string(), what };
    let text = serde_json::to_string(plan).map_err(|error| failed(error.to_string()))?;
    let mut child =
        command.arg(text).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut done = None;
    let mut unreadable = None;
    for line in BufReader::new(child.stdout.take().expect("it is piped")).lines() {
        match serde_json::from_str(&line?) {
            Ok(Line::Progress(share)) => progress(share),
            Ok(Line::Done(outcome)) => done = Some(outcome),
            // Read to the end all the same: what it says about itself is more to the point.
            Err(error) => unreadable = Some(error.to_string()),
        }
    }
    let output = child.wait_with_output()?;
    match done {
        Some(outcome) if output.status.success() => Ok(outcome),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let why = if said.is_empty() { unreadable.unwrap_or(output.status.to_string()) } else { said };
            Err(failed(why))
        }
    }
}

/// Measures the plan that [`ask`] gave, and writes to `out` what it reads.
///
/// # Errors
/// Those of [`measure`](fn@crate::content::measure); [`Error::Options`] for a plan that cannot be read.
pub fn answer(plan: &str, mut out: impl Write) -> Result<()> {
    let plan: Plan = serde_json::from_str(plan).map_err(|error| Error::Options(error.to_string()))?;
    let outcome = crate::content::measure(&plan, &mut |share| {
        // Whoever asked is gone if it fails, which the last line will tell.
        let _ = write(&mut out, &Line::Progress(share));
    })?;
    Ok(write(&mut out, &Line::Done(outcome))?)
}

fn write(out: &mut impl Write, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

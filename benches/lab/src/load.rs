//! A results file: three loads, graded, drawn, and compared with the newest earlier file.

use std::{
    error::Error,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde::{Deserialize, Serialize};

use swarmkeep_benches::{
    charts::{self, Line, Scale},
    origin::{quoted, today},
    tables::{Column, grouped, markdown, significant, table, whole},
};
use swarmkeep_cli::load::{measure, verdict};
use swarmkeep_load::{Report, Second};

mod grade;

/// Put a tracker under load with 10, 100 and 1,000 workers, and write a results file: `results-YYYYMMDD.md`
/// with charts, grades and the changes since the newest earlier file.
#[derive(Debug, clap::Args)]
#[group(id = "load_report")]
pub struct Args {
    /// Where the results go.
    #[arg(value_name = "DIR", conflicts_with_all = ["concurrency", "json"])]
    report: PathBuf,

    #[command(flatten)]
    load: swarmkeep_cli::load::Args,
}

/// The loads of a results file.
const LOADS: [usize; 3] = [10, 100, 1000];

/// Measures, prints and writes.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let mut config = args.load.config();
    let measure = |&workers| {
        config.workers = workers;
        let report = measure(&config)?;
        if report.interrupted { Err("interrupted: nothing is written".into()) } else { Ok(report) }
    };
    let reports = LOADS.iter().map(measure).collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let text = reports.iter().map(Report::text).collect::<Vec<_>>().join("\n");
    let path = write_results(&args.report, &today(), &commands(&args.report), &reports)?;
    io::stdout().write_all(format!("{text}\nwritten to {}\n", path.display()).as_bytes())?;
    verdict(&reports)
}

/// The commands that measure each load of a results file by itself.
fn commands(report: &Path) -> Vec<String> {
    let arguments = std::env::args().skip(2).filter(|argument| Path::new(argument) != report);
    let quoted: Vec<_> = arguments.map(|argument| quoted(&argument)).collect();
    LOADS
        .iter()
        .map(|workers| format!("swarmkeep load {} --concurrency {workers}", quoted.join(" ")))
        .collect()
}

/// The name of the results file of a day, without its extension. Names have the order of the days.
fn file_of(date: &str) -> String {
    format!("results-{}", date.replace('-', ""))
}

/// Numbers for the comparison with a later file. The file itself contains them, invisible to readers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SavedNumbers {
    machine: String,
    loads: Vec<SavedLoad>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SavedLoad {
    workers: usize,
    requests_per_second: f64,
    success_percent: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cpu_seconds_per_million: Option<f64>,
}

const KEPT: &str = "<!-- swarmkeep-load: ";

/// A change below which two runs of one program differ on a machine that is not otherwise idle.
const NOISE_PERCENT: f64 = 10.0;

/// Writes `results-YYYYMMDD.md` with its charts into the directory; a file of the same day is replaced.
/// `commands` are the commands that measured it, one for each report. Returns the path of the file.
pub fn write_results(
    directory: &Path,
    date: &str,
    commands: &[String],
    reports: &[Report],
) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let earlier = newest_before(directory, date)?;
    let charts = draw(directory, date, reports)?;
    let path = directory.join(file_of(date) + ".md");
    fs::write(&path, text(date, commands, reports, &charts, earlier.as_ref()))?;
    Ok(path)
}

/// The newest results file of an earlier day that has numbers to compare with.
fn newest_before(directory: &Path, date: &str) -> io::Result<Option<(String, SavedNumbers)>> {
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let names = fs::read_dir(directory)?.map(name).collect::<io::Result<Vec<_>>>()?;
    let is_earlier = |name: &String| {
        let day = name.strip_prefix("results-").and_then(|name| name.strip_suffix(".md"));
        day.is_some_and(|day| day.len() == 8 && day.bytes().all(|byte| byte.is_ascii_digit()))
            && *name < file_of(date)
    };
    let Some(name) = names.into_iter().filter(is_earlier).max() else { return Ok(None) };
    let text = fs::read_to_string(directory.join(&name))?;
    let kept = text.lines().find_map(|line| line.strip_prefix(KEPT)?.strip_suffix(" -->"));
    Ok(kept.and_then(|json| serde_json::from_str(json).ok()).map(|kept| (name, kept)))
}

fn text(
    date: &str,
    commands: &[String],
    reports: &[Report],
    charts: &[(String, &str)],
    earlier: Option<&(String, SavedNumbers)>,
) -> String {
    let mut text = format!("# Load of a tracker, {date}\n\n");
    let Some(first) = reports.first() else { return text };
    let loads: Vec<&Report> = reports.iter().collect();
    let settings = &first.settings;
    let _ = writeln!(
        text,
        "{}, swarmkeep {}; {} loop, {} s after {} s of warm-up, {} peers, mix {}, seed {}.\n\n```console",
        first.machine,
        first.version,
        settings.r#loop,
        settings.duration.as_secs_f64(),
        settings.warm_up.as_secs_f64(),
        grouped(settings.peers),
        settings.mix,
        settings.seed,
    );
    for command in commands {
        let _ = writeln!(text, "$ {command}");
    }
    text += "```\n\n## Results\n\n";
    text += &results(&loads);
    text += "\n## Grades\n\n";
    text += &grades(&loads);
    text += "\nRates are held against what is expected of trackers with the same number of workers on a common server.\n\n## Patterns\n\n";
    let p95: Vec<_> = loads.iter().map(|report| (report.settings.workers, report.latency.all.p95)).collect();
    let _ = writeln!(text, "- Over workers: {}.", grade::over_workers(&p95));
    for report in &loads {
        let _ = writeln!(
            text,
            "- {} workers, over time: {}.",
            report.settings.workers,
            grade::over_time(whole_seconds(report))
        );
    }
    if let Some(signature) = grade::closed_loop_signature(&loads) {
        let _ = writeln!(text, "\n{signature}");
    }
    for report in &loads {
        let _ = write!(text, "\n## By kind, {} workers\n\n{}", report.settings.workers, by_kind(report));
    }
    if !charts.is_empty() {
        text += "\n## Charts\n\n";
        for (file, title) in charts {
            let _ = writeln!(text, "![{title}]({file})");
        }
    }
    let now = SavedNumbers::of(&loads);
    text += "\n## Changes\n\n";
    match earlier {
        None => text += "There is no earlier file to compare with.\n",
        Some((name, before)) => text += &changes(name, before, &now),
    }
    let _ = writeln!(text, "\n{KEPT}{} -->", serde_json::to_string(&now).expect("numbers and names"));
    text
}

fn results(loads: &[&Report]) -> String {
    let ms = |number: f64| significant(number / 1e3);
    let server = |report: &&Report, of: fn(&swarmkeep_load::Server) -> f64| {
        report.server.as_ref().map_or(String::new(), |server| significant(of(server)))
    };
    let columns: &[Column<'_, &Report>] = &[
        ("workers", &|report| grouped(report.settings.workers as u64)),
        ("requests", &|report| grouped(report.requests)),
        ("failed", &|report| grouped(report.failed)),
        ("wrong", &|report| grouped(report.wrong)),
        ("success, %", &|report| format!("{:.3}", report.success_percent)),
        ("a second", &|report| whole(report.requests_per_second)),
        ("p50, ms", &|report| ms(report.latency.all.p50)),
        ("p95, ms", &|report| ms(report.latency.all.p95)),
        ("p99, ms", &|report| ms(report.latency.all.p99)),
        ("p99.9, ms", &|report| ms(report.latency.all.p999)),
        ("max, ms", &|report| ms(report.latency.all.max)),
        ("peers an answer", &|report| significant(report.peers.per_answer)),
        ("CPU s a million", &|report| server(report, |server| server.cpu_seconds_per_million)),
        ("RSS, MB", &|report| server(report, |server| server.rss_bytes_after as f64 / 1e6)),
    ];
    let of_server = if loads.iter().all(|report| report.server.is_some()) { 0 } else { 2 };
    let mut table = table(loads, &columns[..columns.len() - of_server]);
    for report in loads {
        for (reason, count) in &report.failures {
            let workers = report.settings.workers;
            let _ = write!(table, "\n{workers} workers, {} failed: {reason}.", grouped(*count));
        }
        for (reason, wrong) in &report.wrong_answers {
            let (workers, count) = (report.settings.workers, grouped(wrong.count));
            let _ =
                write!(table, "\n{workers} workers, {count} wrong: {reason}; the first: {}.", wrong.example);
        }
    }
    if table.ends_with('.') {
        table.push('\n');
    }
    table
}

fn grades(loads: &[&Report]) -> String {
    let columns: &[Column<'_, &Report>] = &[
        ("workers", &|report| grouped(report.settings.workers as u64)),
        ("rate", &|report| grade::of_rate(report.settings.workers, report.requests_per_second)),
        ("success", &|report| grade::of_success(report.success_percent).to_owned()),
        ("p50", &|report| grade::of_latency(report.latency.all.p50, grade::P50)),
        ("p95", &|report| grade::of_latency(report.latency.all.p95, grade::P95)),
        ("p99", &|report| grade::of_latency(report.latency.all.p99, grade::P99)),
        ("good for", &|report| grade::good_for(report).to_owned()),
    ];
    table(loads, columns)
}

fn by_kind(report: &Report) -> String {
    let titles = ["ms", "answers", "min", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"];
    let mut columns: Vec<_> = titles.iter().map(|title| vec![(*title).to_owned()]).collect();
    for (kind, latency) in &report.latency.by_kind {
        columns[0].push((*kind).to_owned());
        columns[1].push(grouped(report.by_kind[kind].succeeded));
        for (column, number) in columns[2..].iter_mut().zip(latency.numbers()) {
            column.push(significant(number / 1e3));
        }
    }
    markdown(&columns)
}

/// The table of changes, and a line with its meaning.
fn changes(name: &str, before: &SavedNumbers, now: &SavedNumbers) -> String {
    let titles = ["workers", "what", "before", "now", "change, %"];
    let mut columns: Vec<_> = titles.iter().map(|title| vec![(*title).to_owned()]).collect();
    let (mut better, mut worse) = (Vec::new(), Vec::new());
    for load in &now.loads {
        let Some(old) = before.loads.iter().find(|old| old.workers == load.workers) else { continue };
        let mut rows = vec![
            ("a second", old.requests_per_second, load.requests_per_second, true),
            ("p50, ms", old.p50 / 1e3, load.p50 / 1e3, false),
            ("p95, ms", old.p95 / 1e3, load.p95 / 1e3, false),
            ("p99, ms", old.p99 / 1e3, load.p99 / 1e3, false),
            ("success, %", old.success_percent, load.success_percent, true),
        ];
        if let Some((old, new)) = old.cpu_seconds_per_million.zip(load.cpu_seconds_per_million) {
            rows.push(("CPU s a million", old, new, false));
        }
        for (what, old, new, more_is_better) in rows {
            let percent = if old == 0.0 { 0.0 } else { (new / old - 1.0) * 100.0 };
            if percent.abs() > NOISE_PERCENT {
                let list = if (percent > 0.0) == more_is_better { &mut better } else { &mut worse };
                list.push(format!("{what} at {} workers", load.workers));
            }
            let cells = [
                grouped(load.workers as u64),
                what.into(),
                significant(old),
                significant(new),
                format!("{percent:+.1}"),
            ];
            columns.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
        }
    }
    if columns[0].len() == 1 {
        return format!("Against {name}, which has none of these loads.\n");
    }
    let list = |what: &str, list: &[String]| match list {
        [] => String::new(),
        list => format!(" {what}: {}.", list.join(", ")),
    };
    let mut line = match (better.is_empty(), worse.is_empty()) {
        (true, true) => format!("No number changed by more than {NOISE_PERCENT} %, which is noise."),
        _ => format!(
            "Changed by more than {NOISE_PERCENT} % (less is noise):{}{}",
            list("better", &better),
            list("worse", &worse)
        ),
    };
    if before.machine != now.machine {
        let _ = write!(
            line,
            " The machines differ ({} before), so that none of it tells about the tracker.",
            before.machine
        );
    }
    format!("Against {name}:\n\n{}\n{line}\n", markdown(&columns))
}

impl SavedNumbers {
    fn of(loads: &[&Report]) -> Self {
        let load = |report: &&Report| SavedLoad {
            workers: report.settings.workers,
            requests_per_second: report.requests_per_second,
            success_percent: report.success_percent,
            p50: report.latency.all.p50,
            p95: report.latency.all.p95,
            p99: report.latency.all.p99,
            cpu_seconds_per_million: report.server.map(|server| server.cpu_seconds_per_million),
        };
        let machine = loads.first().map(|report| report.machine.to_string());
        Self { machine: machine.unwrap_or_default(), loads: loads.iter().map(load).collect() }
    }
}

/// The seconds that were measured completely.
fn whole_seconds(report: &Report) -> &[Second] {
    let whole = (report.settings.duration.as_secs() as usize).min(report.series.len());
    &report.series[..whole]
}

/// Draws the charts for which there are numbers. Returns their files and titles.
fn draw(directory: &Path, date: &str, reports: &[Report]) -> io::Result<Vec<(String, &'static str)>> {
    let of_seconds = |value: fn(&Second) -> f64| {
        lines(reports, |report| {
            let points =
                whole_seconds(report).iter().map(|second| (second.second as f64 + 1.0, value(second)));
            points.filter(|&(_, y)| y > 0.0).collect()
        })
    };
    let percentiles = lines(reports, |report| {
        let latency = &report.latency.all;
        let points = [(2.0, latency.p50), (10.0, latency.p90), (20.0, latency.p95), (100.0, latency.p99)];
        let points = points.into_iter().chain([(1000.0, latency.p999)]);
        points.filter(|&(_, y)| y > 0.0).map(|(x, y)| (x, y / 1e3)).collect()
    });
    let charts = [
        (
            "rate",
            "Right answers per second, over time",
            "second",
            Scale::Linear,
            of_seconds(|s| s.succeeded as f64),
        ),
        ("p99", "p99 of each second, in ms", "second", Scale::Linear, of_seconds(|second| second.p99 / 1e3)),
        (
            "tail",
            "Latency in ms, and one answer in how many took longer",
            "one in",
            Scale::Logarithmic,
            percentiles,
        ),
    ];
    let mut drawn = Vec::new();
    for (name, title, grows, scale, lines) in charts {
        let file = format!("{}-{name}.svg", file_of(date));
        let path = directory.join(&file);
        charts::lines(&path, title, grows, scale, &lines)?;
        if path.exists() {
            drawn.push((file, title));
        }
    }
    Ok(drawn)
}

fn lines(reports: &[Report], points: impl Fn(&Report) -> Vec<(f64, f64)>) -> Vec<Line> {
    let line = |(colour, report): (usize, &Report)| Line {
        label: format!("{} workers", report.settings.workers),
        colour,
        points: points(report),
    };
    reports.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(rate: f64, p99: f64, machine: &str) -> SavedNumbers {
        let load = SavedLoad {
            workers: 10,
            requests_per_second: rate,
            success_percent: 100.0,
            p50: 100.0,
            p95: 500.0,
            p99,
            cpu_seconds_per_million: None,
        };
        SavedNumbers { machine: machine.into(), loads: vec![load] }
    }

    #[test]
    fn changes_are_listed_and_noise_is_called_noise() {
        let text = changes("results-20260101.md", &saved(1000.0, 900.0, "m"), &saved(1500.0, 1800.0, "m"));
        assert!(text.contains("|      10 | ") || text.contains("| 10      |"), "{text}");
        assert!(text.contains("+50.0") && text.contains("+100.0"), "{text}");
        assert!(text.contains("better: a second at 10 workers. worse: p99, ms at 10 workers."), "{text}");
        let text = changes("x", &saved(1000.0, 900.0, "m"), &saved(1050.0, 850.0, "m"));
        assert!(text.contains("No number changed by more than 10 %"), "{text}");
        let text = changes("x", &saved(1000.0, 900.0, "m"), &saved(2000.0, 900.0, "n"));
        assert!(text.contains("machines differ"), "{text}");
    }

    #[test]
    fn the_newest_earlier_file_is_found() {
        let directory = std::env::temp_dir().join(format!("swarmkeep-results-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, rate: f64| {
            let json = serde_json::to_string(&saved(rate, 1.0, "m")).unwrap();
            fs::write(directory.join(name), format!("# x\n{KEPT}{json} -->\n")).unwrap();
        };
        write("results-20251231.md", 1.0);
        write("results-20260102.md", 2.0);
        write("results-20260103.md", 3.0);
        write("results-2026.md", 4.0);
        write("results-2026-1-1.md", 5.0);
        write("results-20260100.txt", 6.0);
        let found = |date| newest_before(&directory, date).unwrap();
        let (name, newest) = found("2026-01-03").unwrap();
        assert_eq!((name.as_str(), newest.loads[0].requests_per_second), ("results-20260102.md", 2.0));
        assert_eq!(found("2026-01-01").unwrap().0, "results-20251231.md");
        assert_eq!(found("2025-12-31"), None);
        fs::remove_dir_all(&directory).unwrap();
    }
}

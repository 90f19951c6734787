//! One schema, three places: each `--option` of a subcommand can also be set in the environment and in a TOML
//! file.
//!
//! The schema is the [`clap::Args`] of the subcommand. A value from the environment (`SWARMKEEP_OPTION`) or
//! the file (`option = …`) becomes the default of its option: the command line overrides the environment, and
//! the environment overrides the file.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt::{self, Write as _},
    fs, io,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgAction, ArgMatches, Command,
    builder::ValueParser,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};
use swarmkeep_redis::without_password;
use toml::de::{DeTable, DeValue};

/// The prefix of an option in the environment.
const PREFIX: &str = "SWARMKEEP_";

/// The beginning of a value that names a socket by its path.
pub(crate) const UNIX: &str = "unix:";

const EMPTY: &str = "it is empty: unset it";

/// The option that names the file, on the command line or in the environment.
pub(crate) const FILE: &str = "config";

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot read {}: {}", path.display(), swarmkeep_bittorrent::in_words(source))]
    Read { path: PathBuf, source: io::Error },
    #[error("{place}: {message}")]
    Toml { place: SettingOrigin, message: String },
    #[error("{place}: there is no setting `{key}`{}; `swarmkeep config --default` lists all", meant(nearest))]
    UnknownKey { place: SettingOrigin, key: String, nearest: Option<String> },
    #[error("{place}: {key}: {message}")]
    Value { place: SettingOrigin, key: String, message: String },
    #[error("{0}")]
    CommandLine(#[from] clap::Error),
}

fn meant(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|nearest| format!("; `{nearest}` is meant, perhaps")).unwrap_or_default()
}

/// Settings that conflict.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Contradiction(pub(crate) String);

/// The place of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SettingOrigin {
    Line(PathBuf, usize),
    Variable(String),
    CommandLine,
    Default,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::CommandLine => f.write_str("command line"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// The settings of a subcommand, from all places.
#[derive(Debug)]
pub(crate) struct Effective {
    /// The result of clap, with the subcommand.
    pub(crate) matches: ArgMatches,
    /// Each setting by its name, in the order of the help.
    pub(crate) settings: Vec<Setting>,
    /// Variables that begin with [`PREFIX`] but are no settings, each with the nearest name.
    pub(crate) unknown_variables: Vec<(String, Option<String>)>,
}

/// One setting and where its value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) heading: Option<String>,
    pub(crate) help: String,
    pub(crate) value_name: String,
    pub(crate) is_list: bool,
    pub(crate) values: Vec<String>,
    /// Whether the values may contain passwords.
    pub(crate) is_secret: bool,
    pub(crate) place: SettingOrigin,
}

impl Setting {
    /// The values without passwords.
    pub(crate) fn shown(&self) -> Vec<String> {
        let shown = |value: &String| if self.is_secret { without_password(value) } else { value.clone() };
        self.values.iter().map(shown).collect()
    }

    /// The file with a password in this setting.
    pub(crate) fn password_file(&self) -> Option<&Path> {
        let SettingOrigin::Line(path, _) = &self.place else { return None };
        (self.shown() != self.values).then_some(path)
    }
}

/// Reads the settings of the subcommand of `command` that `arguments` name. `schema` is its schema.
pub(crate) fn read(
    command: &Command,
    schema: &Command,
    arguments: &[OsString],
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Effective, Error> {
    let names: Vec<String> = options(schema).map(|option| option.get_id().to_string()).collect();
    let mut given = BTreeMap::new();
    let mut unknown_variables = Vec::new();
    let mut file_from_environment = None;
    for (variable, value) in environment {
        let Ok(variable) = variable.into_string() else { continue };
        let Some(name) = variable.strip_prefix(PREFIX) else { continue };
        let id = name.to_ascii_lowercase();
        let name = name_of(&id);
        let Ok(value) = value.into_string() else {
            let message = "expected text in UTF-8".into();
            return Err(Error::Value { place: SettingOrigin::Variable(variable), key: name, message });
        };
        if value.trim().is_empty() && (id == FILE || find(schema, &name).is_some()) {
            let place = SettingOrigin::Variable(variable);
            return Err(Error::Value { place, key: name, message: EMPTY.into() });
        }
        if id == FILE {
            file_from_environment = Some(PathBuf::from(value));
        } else if let Some(option) = find(schema, &name) {
            let values: Vec<String> = if is_list(option) {
                value
                    .split(',')
                    .map(|value| value.trim().into())
                    .filter(|value: &String| !value.is_empty())
                    .collect()
            } else {
                vec![value]
            };
            if values.is_empty() {
                let place = SettingOrigin::Variable(variable);
                return Err(Error::Value { place, key: name, message: EMPTY.into() });
            }
            given.insert(option.get_id().to_string(), (SettingOrigin::Variable(variable), values));
        } else {
            let nearest = nearest(&id, &names).map(|nearest| variable_of(&nearest));
            unknown_variables.push((variable, nearest));
        }
    }
    let first = command.clone().try_get_matches_from(arguments)?;
    let first_of_subcommand = first.subcommand().map(|(_, matches)| matches);
    let is_empty = |option: &&Arg| {
        first_of_subcommand.is_some_and(|matches| {
            let id = option.get_id().as_str();
            let mut values = matches.get_raw(id).into_iter().flatten();
            matches.value_source(id) == Some(ValueSource::CommandLine)
                && values.any(|value| value.to_string_lossy().trim().is_empty())
        })
    };
    if let Some(option) = options(schema).find(is_empty) {
        let (place, key) = (SettingOrigin::CommandLine, name_of(option.get_id().as_str()));
        return Err(Error::Value { place, key, message: EMPTY.into() });
    }
    let file = first_of_subcommand.and_then(|matches| matches.get_one::<PathBuf>(FILE).cloned());
    if let Some(path) = file.or(file_from_environment) {
        for (id, value) in read_file(&path, schema, &names)? {
            given.entry(id).or_insert(value);
        }
    }
    for (id, (place, values)) in &given {
        check(schema, id, place, values)?;
    }

    let subcommand = first.subcommand_name().unwrap_or_default().to_owned();
    let defaults = given.iter().map(|(id, (_, values))| (id.clone(), values.clone()));
    let layered = defaults.fold(command.clone(), |command, (id, values)| {
        command.mut_subcommand(&subcommand, |command| command.mut_arg(id, |arg| arg.default_values(values)))
    });
    let matches = layered.try_get_matches_from(arguments)?;
    let (_, of_subcommand) = matches.subcommand().expect("the same as at first");
    let settings = options(schema).map(|option| setting(option, of_subcommand, &given)).collect();
    Ok(Effective { matches, settings, unknown_variables })
}

/// The options that can be set anywhere.
fn options(schema: &Command) -> impl Iterator<Item = &Arg> {
    schema.get_arguments().filter(|arg| arg.get_long().is_some() && arg.get_id() != FILE)
}

fn find<'a>(schema: &'a Command, name: &str) -> Option<&'a Arg> {
    options(schema).find(|option| name_of(option.get_id().as_str()) == name)
}

fn is_file(option: &Arg) -> bool {
    option.get_value_parser().type_id() == ValueParser::path_buf().type_id()
}

/// The files and folders that settings name.
pub(crate) fn files<'a>(schema: &Command, settings: &'a [Setting]) -> impl Iterator<Item = &'a Path> {
    let is_file: Vec<_> = options(schema).map(is_file).collect();
    let of_files = settings.iter().zip(is_file).filter(|(_, is_file)| *is_file);
    of_files.flat_map(|(setting, _)| setting.values.iter().map(Path::new))
}

fn is_list(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Append)
}

/// The name of an option on the command line and in a file.
fn name_of(id: &str) -> String {
    id.replace('_', "-")
}

/// The name of an option in the environment.
fn variable_of(id: &str) -> String {
    format!("{PREFIX}{}", id.to_ascii_uppercase())
}

fn setting(
    option: &Arg,
    matches: &ArgMatches,
    given: &BTreeMap<String, (SettingOrigin, Vec<String>)>,
) -> Setting {
    let id = option.get_id().as_str();
    let values = matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
    let place = match (matches.value_source(id), given.get(id)) {
        (Some(ValueSource::CommandLine), _) => SettingOrigin::CommandLine,
        (_, Some((place, _))) => place.clone(),
        _ => SettingOrigin::Default,
    };
    Setting {
        name: name_of(id),
        heading: option.get_help_heading().map(Into::into),
        help: option.get_long_help().or(option.get_help()).map(ToString::to_string).unwrap_or_default(),
        value_name: option.get_value_names().into_iter().flatten().map(ToString::to_string).collect(),
        is_list: is_list(option),
        values: values.collect(),
        is_secret: option.is_hide_default_value_set(),
        place,
    }
}

/// The name of an option that is most similar to `id`, if any is similar.
fn nearest(id: &str, names: &[String]) -> Option<String> {
    let likeness = |name: &String| strsim::jaro_winkler(id, name);
    let nearest = names.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(nearest) > 0.7).then(|| nearest.clone())
}

/// The values of a file, by option.
fn read_file(
    path: &Path,
    schema: &Command,
    names: &[String],
) -> Result<BTreeMap<String, (SettingOrigin, Vec<String>)>, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
    let place = |at: usize| {
        let before = text.as_bytes().get(..at).unwrap_or_default();
        SettingOrigin::Line(path.into(), 1 + before.iter().filter(|&&byte| byte == b'\n').count())
    };
    let table = DeTable::parse(&text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        let message = match error.message() {
            "duplicate key" => {
                format!("`{}` is given a second time", text.get(span.clone()).unwrap_or_default())
            }
            message if ["key", "comment", "table"].iter().any(|it| message.contains(it)) => message.into(),
            message if message.contains("invalid") || message.contains("must be quoted") => {
                "expected a value; text stands in quotes, such as \"30m\"".into()
            }
            message => message.into(),
        };
        Error::Toml { place: place(span.start), message }
    })?;
    // Paths in the file are relative to its folder, wherever the program is started.
    let folder = std::path::absolute(path).map_err(|source| Error::Read { path: path.into(), source })?;
    let folder = folder.parent().unwrap_or(Path::new("/"));
    let mut given = BTreeMap::new();
    for (key, value) in table.into_inner() {
        let place = place(key.span().start);
        let key: &str = key.get_ref();
        if let DeValue::Table(_) = value.get_ref() {
            let message =
                "there are no sections: all settings stand at the top, such as `http-connections = 100`";
            return Err(Error::Value { place, key: key.into(), message: message.into() });
        }
        let Some(option) = find(schema, key) else {
            let nearest = nearest(&key.replace('-', "_"), names).map(|nearest| name_of(&nearest));
            return Err(Error::UnknownKey { place, key: key.into(), nearest });
        };
        let wrong =
            |message: &str| Error::Value { place: place.clone(), key: key.into(), message: message.into() };
        let scalar = |value: &DeValue<'_>| match value {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(integer) => Ok(integer.to_string()),
            DeValue::Float(float) => Ok(float.to_string()),
            DeValue::Boolean(boolean) => Ok(boolean.to_string()),
            _ => Err(wrong("expected text, a number, or true or false")),
        };
        let mut values: Vec<String> = match value.get_ref() {
            DeValue::Array(values) if is_list(option) => {
                values.iter().map(|value| scalar(value.get_ref())).collect::<Result<_, _>>()?
            }
            DeValue::Array(_) => return Err(wrong("expected one value and not a list")),
            value => vec![scalar(value)?],
        };
        if values.iter().any(|value| value.trim().is_empty()) {
            return Err(wrong(EMPTY));
        }
        if is_file(option) {
            let below = |value: &String| {
                let (unix, path) = value.split_at(if value.starts_with(UNIX) { UNIX.len() } else { 0 });
                Some(unix.to_owned() + folder.join(path).to_str()?)
            };
            let absolute: Option<Vec<_>> = values.iter().map(below).collect();
            values =
                absolute.ok_or_else(|| wrong("expected a path in UTF-8, also of the folder of this file"))?;
        }
        given.insert(option.get_id().to_string(), (place, values));
    }
    Ok(given)
}

/// Checks each value with the parser of its option.
pub(crate) fn check(
    schema: &Command,
    id: &str,
    place: &SettingOrigin,
    values: &[String],
) -> Result<(), Error> {
    let name = name_of(id);
    let schema = schema.clone().no_binary_name(true);
    for value in values {
        if let Err(error) = schema.clone().try_get_matches_from([format!("--{name}={value}")]) {
            let mut message = format!("`{}` is not a value for it", value.escape_debug());
            if let Some(source) = std::error::Error::source(&error) {
                let _ = write!(message, ": {}", crate::expected(source));
            }
            if let Some(ContextValue::Strings(allowed)) = error.get(ContextKind::ValidValue)
                && !allowed.is_empty()
            {
                let _ = write!(message, "; allowed are {}", allowed.join(", "));
            }
            return Err(Error::Value { place: place.clone(), key: name, message });
        }
    }
    Ok(())
}

/// The settings as a file that can be read again: each with its help, and a comment that names its place.
/// Without a value, or if `commented`, it is a comment itself.
pub(crate) fn to_toml(settings: &[Setting], commented: bool) -> String {
    let mut out = String::new();
    let place_of = |heading| settings.iter().position(|setting| setting.heading == heading);
    let mut by_heading: Vec<_> = settings.iter().collect();
    by_heading.sort_by_key(|setting| place_of(setting.heading.clone()));
    let mut last = None;
    for setting in by_heading {
        let Setting { name, heading, help, value_name, is_list, place, .. } = setting;
        if last != Some(heading) {
            last = Some(heading);
            let _ = writeln!(out, "## {}\n", heading.as_deref().unwrap_or_default());
        }
        for line in wrap(help, 100) {
            let _ = writeln!(out, "# {line}");
        }
        let values: Vec<_> = setting.shown().iter().map(|value| to_value(value)).collect();
        let (value, has_value) = match (&values[..], is_list) {
            ([value], false) => (value.clone(), true),
            ([], false) => (value_name.clone(), false),
            (values, _) => (format!("[{}]", values.join(", ")), !values.is_empty()),
        };
        let sign = if commented || !has_value { "#" } else { "" };
        let from = if *place == SettingOrigin::Default { String::new() } else { format!(" # from {place}") };
        let _ = writeln!(out, "{sign}{name} = {value}{from}\n");
    }
    out
}

fn to_value(text: &str) -> String {
    if text.parse::<i64>().is_ok() || text.parse::<bool>().is_ok() {
        text.into()
    } else {
        // Escapes of JSON are escapes of TOML.
        serde_json::Value::from(text).to_string()
    }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.into());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use clap::Args as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Sub,
    }

    #[derive(clap::Subcommand)]
    enum Sub {
        Run(Args),
    }

    #[derive(clap::Args)]
    struct Args {
        #[arg(long)]
        config: Option<PathBuf>,
        #[command(flatten)]
        schema: Schema,
    }

    #[derive(clap::Args)]
    struct Schema {
        /// How many.
        #[arg(long, default_value = "7", value_parser = clap::value_parser!(u16).range(1..=100))]
        how_many: u16,
        /// Where.
        #[arg(long, value_name = "PLACE")]
        place: Vec<String>,
        /// Which.
        #[arg(long, value_parser = ["near", "far"])]
        which: Option<String>,
        /// Whether.
        #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
        whether: bool,
        /// The link.
        #[arg(long, hide_default_value = true)]
        link: Option<String>,
    }

    fn schema() -> Command {
        Schema::augment_args(Command::new("run"))
    }

    fn read(
        arguments: &[&str],
        environment: &[(&str, &str)],
        file: Option<&str>,
    ) -> Result<Effective, String> {
        let file = file.map(|text| {
            let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
            fs::write(&file, text).unwrap();
            file
        });
        let mut all: Vec<OsString> = vec!["program".into(), "run".into()];
        all.extend(arguments.iter().map(OsString::from));
        if let Some(file) = &file {
            all.extend(["--config".into(), file.path().into()]);
        }
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        let read = super::read(&<Cli as clap::CommandFactory>::command(), &schema(), &all, environment);
        let shown = |error: Error| match &file {
            Some(file) => error.to_string().replace(&*file.path().to_string_lossy(), "FILE"),
            None => error.to_string(),
        };
        read.map_err(shown)
    }

    fn values(effective: &Effective) -> Vec<String> {
        effective.settings.iter().map(|setting| setting.values.join(" ")).collect()
    }

    #[test]
    fn the_command_line_counts_before_the_environment_and_that_before_the_file() {
        let file = "how-many = 10\nplace = [\"a\", \"b\"]\nwhich = \"far\"\nwhether = true";
        let both = [
            ("SWARMKEEP_HOW_MANY", "20"),
            ("SWARMKEEP_PLACE", "c, d"),
            ("SWARMKEEP_WHETHER", "false"),
            ("HOME", "x"),
        ];
        for (arguments, environment, file, expected) in [
            (&[][..], &[][..], None, ["7", "", "", "false", ""]),
            (&[], &[], Some(file), ["10", "a b", "far", "true", ""]),
            (&[], &both, Some(file), ["20", "c d", "far", "false", ""]),
            (
                &["--how-many=30", "--place", "e", "--whether"],
                &both,
                Some(file),
                ["30", "e", "far", "true", ""],
            ),
            (&["--which", "near"], &both, None, ["20", "c d", "near", "false", ""]),
        ] {
            assert_eq!(values(&read(arguments, environment, file).unwrap()), expected);
        }
        let effective = read(&["--which=near"], &both[..1], Some("\nplace = \"a\"")).unwrap();
        let places: Vec<_> = effective.settings.iter().map(|setting| setting.place.to_string()).collect();
        assert_eq!(places[0], "SWARMKEEP_HOW_MANY");
        assert!(places[1].ends_with(".toml:2"), "{places:?}");
        assert_eq!(places[2..4], ["command line", "default"]);
    }

    #[test]
    fn errors_name_the_line_and_the_allowed_values() {
        for (file, expected) in [
            (
                "\nhow_much = 3",
                "FILE:2: there is no setting `how_much`; `how-many` is meant, perhaps; `swarmkeep config --default` lists all",
            ),
            ("zzz = 3", "FILE:1: there is no setting `zzz`; `swarmkeep config --default` lists all"),
            (
                "how-many = 101",
                "FILE:1: how-many: `101` is not a value for it: expected a number from 1 to 100",
            ),
            ("how-many = [1, 2]", "FILE:1: how-many: expected one value and not a list"),
            (
                "[how-many]\na = 1",
                "FILE:1: how-many: there are no sections: all settings stand at the top, such as `http-connections = 100`",
            ),
            (
                "# first\nplace = []\nwhich = \"here\"",
                "FILE:3: which: `here` is not a value for it; allowed are near, far",
            ),
            ("\n\nplace = [1", "FILE:3: unclosed array, expected `]`"),
            ("place! = [1]", "FILE:1: invalid unquoted key, expected letters, numbers, `-`, `_`"),
            ("place = [1] # \u{1}", "FILE:1: invalid comment character, expected printable characters"),
            ("how-many = 1\nhow-many = 2", "FILE:2: `how-many` is given a second time"),
        ] {
            assert_eq!(read(&[], &[], Some(file)).unwrap_err(), expected, "{file}");
        }
        let command = <Cli as clap::CommandFactory>::command();
        let not_text = [("SWARMKEEP_WHICH".into(), OsString::from_vec(b"\xff".to_vec()))];
        let error = super::read(&command, &schema(), &["program".into(), "run".into()], not_text);
        assert_eq!(error.unwrap_err().to_string(), "SWARMKEEP_WHICH: which: expected text in UTF-8");
        let variable = [("SWARMKEEP_WHICH", "here\u{1b}")];
        let expected = "SWARMKEEP_WHICH: which: `here\\u{1b}` is not a value for it; allowed are near, far";
        assert_eq!(read(&[], &variable, None).unwrap_err(), expected);
        assert!(read(&["--how-many=0"], &[], None).unwrap_err().contains("0 is not in 1..=100"));
        assert!(
            read(&["--config", "/nowhere/at/all"], &[], None)
                .unwrap_err()
                .starts_with("cannot read /nowhere/at/all: ")
        );
    }

    #[test]
    fn unknown_variables_are_reported() {
        let variables = [("SWARMKEEP_HOWMANY", "1"), ("SWARMKEEP_9", "tcp://192.0.2.1:9")];
        let unknown = read(&[], &variables, None).unwrap().unknown_variables;
        let nearest = Some("SWARMKEEP_HOW_MANY".into());
        assert_eq!(unknown, [("SWARMKEEP_HOWMANY".into(), nearest), ("SWARMKEEP_9".into(), None)]);
    }

    #[test]
    fn passwords_are_not_shown() {
        let effective = read(&["--which=near", "--link=x://a:b@c"], &[], None).unwrap();
        let text = to_toml(&effective.settings, false);
        assert!(text.contains("link = \"x://a:***@c\" # from command line\n"), "{text}");
    }

    #[test]
    fn printed_settings_can_be_read_again() {
        let effective = read(&["--place=\"a\" # \u{e9}\\", "--place=-3", "--whether"], &[], None).unwrap();
        let text = to_toml(&effective.settings, false);
        let again = read(&[], &[], Some(&text)).unwrap();
        assert_eq!(values(&again), values(&effective), "{text}");
        let commented = read(&[], &[], Some(&to_toml(&effective.settings, true))).unwrap();
        assert_eq!(values(&commented), ["7", "", "", "false", ""]);
    }
}

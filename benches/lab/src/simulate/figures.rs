//! Measured figures, read from the file that benches write.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

use super::Error;

/// All figures of a file, by name.
pub(crate) struct Figures {
    file: String,
    pub(crate) by_name: BTreeMap<String, Figure>,
}

/// One number, the document and the row that show it, and the command that measures it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) from: String,
    pub(crate) command: String,
}

/// What the formulas need: microseconds of one core for an announce, and bytes of memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// On a tracker that has the packed store in its memory, with the connect before it.
    pub(crate) tracker: f64,
    /// The part of this that the store takes.
    pub(crate) store: f64,
    /// On a tracker that asks Redis, and on the server that it asks.
    pub(crate) redis_client: f64,
    pub(crate) redis_server: f64,
    pub(crate) packed: Bytes,
    pub(crate) redis: Bytes,
}

/// Bytes of memory in one store: a swarm of one IPv4 peer, one of ten, and a peer of a large swarm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes {
    pub(crate) swarm_of_one: f64,
    pub(crate) swarm_of_ten: f64,
    pub(crate) v4_peer: f64,
    pub(crate) v6_peer: f64,
}

impl Figures {
    /// The figures of `path`; without a path, those of the repository when this was built.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, Error> {
        let file = path.unwrap_or(Path::new("docs/reports/figures.json")).display().to_string();
        let committed = || Ok(include_str!("../../../../docs/reports/figures.json").to_owned());
        let text = path.map_or_else(committed, fs::read_to_string);
        let text = text.map_err(|error| Error(format!("{file}: {error}")))?;
        let by_name = serde_json::from_str(&text).map_err(|error| Error(format!("{file}: {error}")))?;
        Ok(Self { file, by_name })
    }

    pub(crate) fn costs(&self) -> Result<Costs, Error> {
        // Connection ids live for two minutes (BEP 15), so there is a connect for each announce.
        let tracker = self.get("tracker.connect.us")? + self.get("tracker.announce.us")?;
        let store = self.get("packed.announce.ns")? / 1000.0;
        Ok(Costs {
            tracker,
            store,
            redis_client: tracker - store + self.get("redis.client.us")?,
            redis_server: self.get("redis.server.us")?,
            packed: self.bytes("packed", 1.0)?,
            redis: self.bytes("redis", self.get("redis.bytes.resident_share")?)?,
        })
    }

    fn bytes(&self, store: &str, times: f64) -> Result<Bytes, Error> {
        let of = |what| self.get(&format!("{store}.bytes.{what}")).map(|bytes| bytes * times);
        Ok(Bytes {
            swarm_of_one: of("swarm_of_one")?,
            swarm_of_ten: of("swarm_of_ten")?,
            v4_peer: of("v4_peer")?,
            v6_peer: of("v6_peer")?,
        })
    }

    fn get(&self, name: &str) -> Result<f64, Error> {
        let Some(Figure { value, .. }) = self.by_name.get(name) else {
            return Err(Error(format!("{}: it has no figure `{name}`", self.file)));
        };
        if *value <= 0.0 {
            return Err(Error(format!("{}: `{name}` is {value}, and has to be above 0", self.file)));
        }
        Ok(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_figures_have_all_that_is_needed() {
        let figures = Figures::read(None).unwrap();
        let costs = figures.costs().unwrap();
        assert!(costs.store < costs.tracker, "the store is a part of it");
        assert!(figures.by_name.values().all(|figure| !figure.from.is_empty() && !figure.command.is_empty()));
    }

    #[test]
    fn errors_name_the_file_and_the_figure() {
        let problem = |text| {
            let by_name = serde_json::from_str(text).unwrap();
            Figures { file: "my.json".to_owned(), by_name }.costs().unwrap_err().to_string()
        };
        assert_eq!(problem("{}"), "my.json: it has no figure `tracker.connect.us`");
        let zero = r#"{"tracker.connect.us": {"value": 0, "from": "", "command": ""}}"#;
        assert_eq!(problem(zero), "my.json: `tracker.connect.us` is 0, and has to be above 0");
    }
}

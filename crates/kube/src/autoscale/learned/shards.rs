//! What the `ConfigMap`s of learned state have, and what to write so that they have what was learned by now.
//!
//! The entries are spread over [`SHARDS`] objects by the target's name, so that a write sends little and no object grows without
//! bound.

use std::collections::BTreeMap;

use crate::autoscale::TargetKey;

/// How many objects there are.
pub(super) const SHARDS: usize = 16;
/// The most entries of one object: with the longest names, half of what the API server allows.
pub(super) const MOST: usize = 1500;
/// The longest key of an entry that the API server allows.
const LONGEST_KEY: usize = 253;
/// The longest value.
pub(super) const LONGEST_VALUE: usize = 64;

/// What was learned, by the key of an entry.
pub(super) type Learned = BTreeMap<String, Vec<u8>>;

/// The key of a target's entry; `None`: its name is too long. No name of an object has an underscore.
pub(super) fn entry_key(target: &TargetKey) -> Option<String> {
    let TargetKey { namespace, group, kind, name } = target;
    let key = format!("{namespace}_{group}_{kind}_{name}");
    (key.len() <= LONGEST_KEY).then_some(key)
}

/// One object, as it was read or written last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shard {
    /// `None`: it does not exist.
    pub(super) version: Option<String>,
    pub(super) entries: Learned,
}

/// All objects, as they were read or written last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::autoscale) struct Shards(Vec<Shard>);

impl Default for Shards {
    fn default() -> Self {
        Self(vec![Shard::default(); SHARDS])
    }
}

/// A write of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShardWrite {
    pub(super) shard: usize,
    /// The version that it is based on; `None`: the object is made.
    pub(super) version: Option<String>,
    /// The entries that have changed; `None`: it is gone.
    pub(super) changes: BTreeMap<String, Option<Vec<u8>>>,
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ShardUpdate {
    /// It was written; this is the version now.
    Written(ShardWrite, String),
    /// Another writer was first: this is what the object has. The next write is based on it.
    Read(usize, Shard),
}

impl Shards {
    /// What was learned about a target.
    pub(super) fn get(&self, target: &TargetKey) -> Option<&[u8]> {
        let key = entry_key(target)?;
        self.0.get(shard_of(&key))?.entries.get(&key).map(Vec::as_slice)
    }

    /// What to write, so that the objects have what was learned by now. What does not fit is left out.
    pub(super) fn writes(&self, learned: &Learned) -> Vec<ShardWrite> {
        let mut writes = Vec::new();
        for (number, shard) in self.0.iter().enumerate() {
            let ours = learned.iter().filter(|(key, value)| {
                shard_of(key) == number && value.len() <= LONGEST_VALUE && !value.is_empty()
            });
            let ours: BTreeMap<&String, &Vec<u8>> = ours.take(MOST).collect();
            let gone = shard.entries.keys().filter(|key| !ours.contains_key(*key));
            let mut changes: BTreeMap<String, Option<Vec<u8>>> =
                gone.map(|key| (key.clone(), None)).collect();
            let new = ours.iter().filter(|(key, value)| shard.entries.get(**key) != Some(**value));
            changes.extend(new.map(|(key, value)| ((*key).clone(), Some((*value).clone()))));
            if !changes.is_empty() {
                writes.push(ShardWrite { shard: number, version: shard.version.clone(), changes });
            }
        }
        writes
    }

    /// All objects, as they were read.
    pub(super) fn new(all: Vec<Shard>) -> Self {
        Self(all)
    }

    /// Objects were written, or read again.
    pub(super) fn update(&mut self, updates: Vec<ShardUpdate>) {
        for update in updates {
            match update {
                ShardUpdate::Written(write, version) => self.written(write, version),
                ShardUpdate::Read(number, read) => {
                    if let Some(shard) = self.0.get_mut(number) {
                        *shard = read;
                    }
                }
            }
        }
    }

    fn written(&mut self, write: ShardWrite, version: String) {
        let Some(shard) = self.0.get_mut(write.shard) else { return };
        shard.version = Some(version);
        for (key, value) in write.changes {
            match value {
                Some(value) => drop(shard.entries.insert(key, value)),
                None => drop(shard.entries.remove(&key)),
            }
        }
    }
}

/// The object of an entry: by FNV-1a, which stays the same in all versions.
fn shard_of(key: &str) -> usize {
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    usize::try_from(hash % SHARDS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> TargetKey {
        TargetKey {
            namespace: "shop".into(),
            group: "apps".into(),
            kind: "Deployment".into(),
            name: name.into(),
        }
    }

    fn learned(count: usize, value: u8) -> Learned {
        let entry = |n: usize| (entry_key(&target(&format!("cart-{n}"))).unwrap(), vec![value; 64]);
        (0..count).map(entry).collect()
    }

    fn save(shards: &mut Shards, learned: &Learned) -> usize {
        let writes = shards.writes(learned);
        let changes = writes.iter().map(|write| write.changes.len()).sum();
        shards.update(writes.into_iter().map(|write| ShardUpdate::Written(write, "1".to_owned())).collect());
        changes
    }

    #[test]
    fn only_what_has_changed_is_written_and_what_is_gone_is_removed() {
        let (mut shards, mut all) = (Shards::default(), learned(1000, 1));
        assert_eq!(save(&mut shards, &all), 1000);
        assert_eq!(save(&mut shards, &all), 0);
        all.insert(entry_key(&target("cart-7")).unwrap(), vec![2; 64]);
        all.remove(&entry_key(&target("cart-8")).unwrap());
        let writes = shards.writes(&all);
        assert!(writes.len() <= 2 && writes.iter().all(|write| write.version.is_some()), "{writes:?}");
        assert_eq!(save(&mut shards, &all), 2);
        assert_eq!(shards.get(&target("cart-7")), Some(&[2; 64][..]));
        assert_eq!(shards.get(&target("cart-8")), None);
    }

    #[test]
    fn entries_are_spread_and_each_object_is_bounded() {
        let mut shards = Shards::default();
        save(&mut shards, &learned(8000, 1));
        let sizes: Vec<usize> = shards.0.iter().map(|shard| shard.entries.len()).collect();
        assert!(sizes.iter().all(|size| (350..=650).contains(size)), "{sizes:?}");
        save(&mut shards, &learned(100_000, 1));
        assert!(shards.0.iter().all(|shard| shard.entries.len() == MOST));
    }

    #[test]
    fn a_target_whose_name_is_too_long_or_whose_state_is_too_large_is_not_kept() {
        assert_eq!(entry_key(&target(&"x".repeat(240))), None);
        let large = [(entry_key(&target("cart")).unwrap(), vec![1; 65])].into();
        assert_eq!(Shards::default().writes(&large), []);
    }
}

//! Documents of the service as values of the store contract.

use serde_json::{Value, json};
use store_api::{
    AttemptState, AttemptTails, ClassAchieved, Crc32c, Digest, Durability, NodeId, NodeLife, Offset, PartitionKey, Scope, SealManifest,
    StoreClass, SubpartitionIndex, SubpartitionTable, SyncLevel,
};

fn one_of<T: Copy>(value: &Value, all: &[T], name: impl Fn(T) -> &'static str) -> T {
    all.iter().copied().find(|one| *value == name(*one)).unwrap_or_else(|| panic!("{value} is not a documented name"))
}

pub(crate) fn class(document: &Value) -> ClassAchieved {
    let classes = [("pipelined", StoreClass::Pipelined), ("blocking", StoreClass::Blocking), ("durable", StoreClass::Durable)];
    let class = classes.into_iter().find(|(name, _)| document["class"] == *name).expect("a class").1;
    let durability = one_of(&document["durability"], &[Durability::Volatile, Durability::Local, Durability::Shared], Durability::as_str);
    let sync = one_of(&document["sync"], &[SyncLevel::Full, SyncLevel::Data, SyncLevel::None], SyncLevel::as_str);
    let scopes = [Scope::NodeLife, Scope::NodeDisk, Scope::FileSystem, Scope::ObjectStore];
    ClassAchieved { class, durability, sync, scope: one_of(&document["scope"], &scopes, Scope::as_str) }
}

/// Subpartitions and offsets.
pub(crate) fn pairs(list: &Value) -> Vec<(SubpartitionIndex, Offset)> {
    let pair = |one: &Value| (SubpartitionIndex::new(small(&one["subpartition"])), Offset::new(one["offset"].as_u64().expect("an offset")));
    list.as_array().expect("a list").iter().map(pair).collect()
}

fn small(value: &Value) -> u32 {
    u32::try_from(value.as_u64().expect("a number")).expect("32 bits")
}

pub(crate) fn tails(document: &Value) -> AttemptTails {
    let states = [
        ("open", AttemptState::Open),
        ("prepared", AttemptState::Prepared),
        ("sealed", AttemptState::Sealed),
        ("aborted", AttemptState::Aborted),
        ("superseded", AttemptState::Fenced),
        ("released", AttemptState::Released),
        ("lost", AttemptState::Lost),
    ];
    let state = states.into_iter().find(|(name, _)| document["state"] == *name).expect("a documented state").1;
    AttemptTails { state, tails: pairs(&document["tails"]) }
}

pub(crate) fn table_lists(table: &SubpartitionTable) -> Value {
    let filled: Vec<_> = table.non_empty().collect();
    json!({
        "indices": filled.iter().map(|(index, _)| index.get()).collect::<Vec<_>>(),
        "lengths": filled.iter().map(|(_, digest)| digest.length).collect::<Vec<_>>(),
        "crcs": filled.iter().map(|(_, digest)| digest.crc.get()).collect::<Vec<_>>(),
    })
}

fn table(count: u32, lists: &Value) -> SubpartitionTable {
    let list = |name: &str| lists[name].as_array().cloned();
    let (lengths, crcs) = (list("lengths").expect("lengths"), list("crcs").expect("checksums"));
    let indices = list("indices").map_or_else(|| (0..).take(lengths.len()).collect(), |named| named.iter().map(small).collect::<Vec<_>>());
    let digests =
        lengths.iter().zip(&crcs).map(|(length, crc)| Digest { length: length.as_u64().expect("a length"), crc: Crc32c::new(small(crc)) });
    let entries = indices.into_iter().map(SubpartitionIndex::new).zip(digests);
    SubpartitionTable::new(count, entries).expect("a table")
}

/// A manifest. Node and life are those of the holder now, not of the seal, so they are left out.
pub(crate) fn manifest(partition: &PartitionKey, n_stored: u32, document: &Value) -> SealManifest {
    assert_eq!(document["partition"], partition.partition.get());
    let table = table(n_stored, &document["subpartitions"]);
    assert_eq!(document["total_bytes"], table.total_bytes());
    SealManifest {
        attempt: partition.attempt(document["attempt"].as_str().and_then(|text| text.parse().ok()).expect("an attempt")),
        table,
        class: class(&document["class"]),
        node: NodeId::new("node").expect("an id"),
        life: NodeLife::new(0),
        sealed_at_ms: document["sealed_at_ms"].as_u64().expect("a time"),
    }
}

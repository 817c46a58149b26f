//! States of an attempt: the whole table, and every path through it.

use crate::{AttemptEvent, AttemptState};

const STATES: [AttemptState; 7] = [
    AttemptState::Open,
    AttemptState::Prepared,
    AttemptState::Sealed,
    AttemptState::Aborted,
    AttemptState::Fenced,
    AttemptState::Released,
    AttemptState::Lost,
];
const EVENTS: [AttemptEvent; 7] = [
    AttemptEvent::Append,
    AttemptEvent::Prepare,
    AttemptEvent::Publish,
    AttemptEvent::Abort,
    AttemptEvent::Fence,
    AttemptEvent::Release,
    AttemptEvent::Lose,
];

fn letter(state: AttemptState) -> char {
    match state {
        AttemptState::Open => 'O',
        AttemptState::Prepared => 'P',
        AttemptState::Sealed => 'S',
        AttemptState::Aborted => 'A',
        AttemptState::Fenced => 'F',
        AttemptState::Released => 'R',
        AttemptState::Lost => 'L',
    }
}

#[test]
fn the_table_of_transitions_is_this_and_no_other() {
    // One line for each state; in it one letter for append, prepare, publish, abort, fence,
    // release, lose.
    let wanted = ["OP-AFR-", "-PSAFR-", "--S-FRL", "---A-A-", "----FF-", "-----R-", "----FRL"];
    for (state, line) in STATES.into_iter().zip(wanted) {
        let found: String = EVENTS.into_iter().map(|event| state.after(event).map_or('-', letter)).collect();
        assert_eq!(found, line, "{state:?}");
    }
}

/// All states that an attempt can have been in, for each way of at most `depth` events.
fn walk(state: AttemptState, path: &mut Vec<AttemptState>, depth: usize, visit: &mut dyn FnMut(&[AttemptState])) {
    path.push(state);
    visit(path);
    if depth > 0 {
        for next in EVENTS.into_iter().filter_map(|event| state.after(event).ok()).filter(|next| *next != state) {
            walk(next, path, depth - 1, visit);
        }
    }
    path.pop();
}

#[test]
fn no_path_brings_an_attempt_back_or_makes_it_visible_unprepared() {
    let mut n_paths = 0;
    walk(AttemptState::Open, &mut Vec::new(), 6, &mut |path| {
        n_paths += 1;
        for pair in path.windows(2) {
            assert!(!pair[0].is_final(), "{path:?} leaves its end");
            assert_ne!(pair[1], AttemptState::Open, "{path:?} opens again");
        }
        let at = |wanted: AttemptState| path.iter().position(|state| *state == wanted);
        if let Some(sealed) = at(AttemptState::Sealed) {
            assert_eq!(sealed.checked_sub(1).map(|before| path[before]), Some(AttemptState::Prepared), "{path:?}");
            assert_eq!(at(AttemptState::Aborted), None, "{path:?} aborts what readers may have seen");
        }
        if let Some(lost) = at(AttemptState::Lost) {
            assert!(at(AttemptState::Sealed).is_some_and(|sealed| sealed < lost), "{path:?} loses what was never promised");
        }
    });
    assert!(n_paths > 10, "{n_paths} paths");
}

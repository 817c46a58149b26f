//! Strongly connected components.

/// Marks a node that was not visited yet.
const UNVISITED: u32 = u32::MAX;

struct Search {
    order: Vec<u32>,
    low: Vec<u32>,
    component: Vec<u32>,
    open: Vec<u32>,
    n_visited: u32,
    n_components: u32,
}

struct Frame {
    node: u32,
    successors: Vec<u32>,
    next: usize,
}

/// Number of the component of each of `n_nodes` nodes. Components are numbered against the arrows:
/// a component has a higher number than every other one it leads to. Tarjan's algorithm, without
/// recursion, so that a long chain does not need a deep stack. Linear in nodes and arrows.
pub(super) fn strong_components(n_nodes: usize, successors: impl Fn(u32) -> Vec<u32>) -> Vec<u32> {
    let mut search = Search {
        order: vec![UNVISITED; n_nodes],
        low: vec![UNVISITED; n_nodes],
        component: vec![UNVISITED; n_nodes],
        open: Vec::new(),
        n_visited: 0,
        n_components: 0,
    };
    for root in (0..n_nodes).filter_map(|node| u32::try_from(node).ok()) {
        if at(&search.order, root) != UNVISITED {
            continue;
        }
        let mut path = vec![search.enter(root, &successors)];
        while let Some(frame) = path.last_mut() {
            if let Some(next) = frame.successors.get(frame.next).copied() {
                frame.next += 1;
                let node = frame.node;
                if at(&search.order, next) == UNVISITED {
                    path.push(search.enter(next, &successors));
                } else if at(&search.component, next) == UNVISITED {
                    lower(&mut search.low, node, at(&search.order, next));
                }
            } else if let Some(done) = path.pop() {
                search.leave(done.node);
                if let Some(parent) = path.last() {
                    let low = at(&search.low, done.node);
                    lower(&mut search.low, parent.node, low);
                }
            }
        }
    }
    search.component
}

impl Search {
    fn enter(&mut self, node: u32, successors: impl Fn(u32) -> Vec<u32>) -> Frame {
        put(&mut self.order, node, self.n_visited);
        put(&mut self.low, node, self.n_visited);
        self.n_visited += 1;
        self.open.push(node);
        Frame { node, successors: successors(node), next: 0 }
    }

    fn leave(&mut self, node: u32) {
        if at(&self.low, node) != at(&self.order, node) {
            return;
        }
        while let Some(member) = self.open.pop() {
            put(&mut self.component, member, self.n_components);
            if member == node {
                break;
            }
        }
        self.n_components += 1;
    }
}

fn at(numbers: &[u32], node: u32) -> u32 {
    numbers.get(node as usize).copied().unwrap_or(0)
}

fn put(numbers: &mut [u32], node: u32, number: u32) {
    if let Some(place) = numbers.get_mut(node as usize) {
        *place = number;
    }
}

fn lower(numbers: &mut [u32], node: u32, number: u32) {
    let current = at(numbers, node);
    put(numbers, node, current.min(number));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_one_component_and_what_it_leads_to_has_a_lower_number() {
        let arrows: [&[u32]; 5] = [&[1], &[2], &[0, 3], &[4], &[]];
        let component = strong_components(5, |node| arrows[node as usize].to_vec());
        assert_eq!(component[0], component[1]);
        assert_eq!(component[1], component[2]);
        assert!(component[2] > component[3] && component[3] > component[4], "{component:?}");
    }

    #[test]
    fn a_chain_of_a_million_nodes_needs_no_deep_stack() {
        let component = strong_components(1_000_000, |node| if node + 1 < 1_000_000 { vec![node + 1] } else { vec![] });
        assert_eq!(component[0], 999_999);
    }
}

//! What ranks do: one function per scenario, found by name. Each runs on every rank of a team.

mod bits;
mod capture;
mod configured;
mod graphs;
mod grouped;
mod inits;
mod large;
mod lifecycle;
mod matrix;
mod memory;
mod messages;
mod mismatch;
mod misuse;
mod misuse_init;
mod order;
mod ports;
mod programs;
mod scaled;
mod sequences;
mod slow;
mod split;
mod streams;
mod survivor;

use crate::driver::Outcome;
use crate::rank::Rank;

pub type Scenario = fn(&Rank) -> Outcome<String>;

const ALL: &[(&str, Scenario)] = &[
    ("matrix", matrix::run),
    ("specials", matrix::specials),
    ("large", large::run),
    ("bits", bits::run),
    ("slow_broadcast", slow::broadcast),
    ("sequences", sequences::run),
    ("opposite_messages", messages::opposite),
    ("many_messages", messages::many),
    ("empty_messages", messages::empty),
    ("random_messages", messages::random),
    ("own_messages", messages::own),
    ("two_comms", order::two_comms),
    ("lazy_path", order::lazy_path),
    ("root_leaves", order::root_leaves),
    ("streams", streams::run),
    ("null_stream", streams::null_stream),
    ("current_device", streams::current_device),
    ("grouped", grouped::run),
    ("end_in_group", grouped::ends),
    ("capture", capture::run),
    ("capture_first", capture::first),
    ("graph_update", graphs::update),
    ("graph_outlives", graphs::outlive),
    ("graph_is_gone", graphs::gone),
    ("graph_of_several_ranks", graphs::of_several_ranks),
    ("capture_interleaved", capture::interleaved),
    ("init_all", lifecycle::init_all),
    ("group_init", lifecycle::group_init),
    ("queries", lifecycle::queries),
    ("many_comms", lifecycle::many_comms),
    ("concurrent_init", lifecycle::concurrent_init),
    ("exit_without_destroy", lifecycle::exit_without_destroy),
    ("abort", lifecycle::abort),
    ("scaled", scaled::run),
    ("scaled_misuse", scaled::misuse),
    ("mem_alloc", memory::alloc),
    ("register", memory::register),
    ("configured", configured::run),
    ("scalable", inits::scalable),
    ("inits_in_a_group", inits::in_a_group),
    ("reset_debug", inits::reset_debug),
    ("programs", programs::run),
    ("split", split::run),
    ("survivor", survivor::run),
    ("misuse", misuse::run),
    ("misuse_init", misuse_init::run),
    ("mismatch", mismatch::run),
    ("stalls", mismatch::stalls),
    ("one_rank", ports::one_rank),
    ("port_scan", ports::run),
];

pub fn find(name: &str) -> Option<Scenario> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, scenario)| *scenario)
}

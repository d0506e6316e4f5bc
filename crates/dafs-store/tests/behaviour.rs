//! One suite of behaviour for every store, run in memory, on a local directory and spread over nodes, in stripes and copies:
//! as whoever runs the tests, as another user of a privileged server, and again without privileges.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/data.rs"]
mod data;
#[path = "common/extras.rs"]
mod extras;
#[path = "common/tree.rs"]
mod tree;

use common::World;

macro_rules! suite {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod memory {
            use super::*;
            $(#[test] fn $name() { World::memory().iter().for_each($module::$name); })*
        }
        mod posix {
            use super::*;
            $(#[test] fn $name() { World::posix().iter().for_each($module::$name); })*
        }
        mod posix_other_user {
            use super::*;
            $(#[test] fn $name() { World::posix_other_user().iter().for_each($module::$name); })*
        }
        mod striped {
            use super::*;
            $(#[test] fn $name() { World::striped().iter().for_each($module::$name); })*
        }
        mod striped_other_user {
            use super::*;
            $(#[test] fn $name() { World::striped_other_user().iter().for_each($module::$name); })*
        }
        mod copied {
            use super::*;
            $(#[test] fn $name() { World::copied().iter().for_each($module::$name); })*
        }
        mod copied_other_user {
            use super::*;
            $(#[test] fn $name() { World::copied_other_user().iter().for_each($module::$name); })*
        }
    };
}

suite! {
    data::attributes_change_one_by_one_and_together,
    data::content_reads_back,
    data::every_mode_bit_survives,
    data::far_writes_leave_holes,
    data::named_attributes_behave_as_files,
    data::opens_keep_to_their_mode,
    data::rights_follow_the_mode,
    data::sizes_change_through_an_open,
    data::stability_and_waiting_do_not_change_content,
    data::symlinks_have_times_but_no_mode,
    data::a_new_owner_counts_also_when_it_is_the_old_one,
    data::an_owner_may_name_the_present_group,
    data::vectors_scatter_and_gather,
    extras::bad_extended_attributes_are_refused,
    extras::extended_attributes_are_kept,
    extras::files_are_copied_and_cloned,
    extras::holes_and_data_are_found,
    extras::lists_follow_the_mode_and_the_other_way_round,
    extras::named_users_and_inheritance_are_kept_where_they_can_be,
    extras::space_is_set_aside_and_given_back,
    tree::any_bytes_make_a_name,
    tree::changes_of_a_directory_are_told,
    tree::creating_respects_what_is_there,
    tree::directories_go_up_to_the_root_and_no_further,
    tree::every_kind_can_be_made,
    tree::files_without_a_name_can_get_one,
    tree::exclusive_creates_know_their_own,
    tree::forged_ids_are_refused,
    tree::hard_links_are_one_object,
    tree::listings_bear_changes_in_between,
    tree::listings_in_pages_miss_and_repeat_nothing,
    tree::names_and_attributes_can_be_made_stable,
    tree::names_are_checked_everywhere,
    tree::removed_directories_are_stale,
    tree::removed_files_live_until_closed,
    tree::renames_replace_what_fits,
    tree::space_is_told,
    tree::threads_do_not_disturb_each_other,
    tree::wrong_kinds_are_named,
}

#[test]
fn everything_again_without_privileges() {
    common::run_again_without_privileges();
}

#[test]
fn everything_again_as_root_in_a_container() {
    common::run_again_as_root_in_a_container();
}

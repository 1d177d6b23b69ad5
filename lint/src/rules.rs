//! The registry: one `mod` line and one entry in `RULES` per rule, both sorted by name.

mod accumulation_without_no_sync;
mod attribute_of_wrapped_model;
mod autograd_grad_on_parameters;
mod bad_device_ids;
mod batch_reduction_in_forward;
mod batchnorm_not_synced;
mod clip_before_unscale;
mod constant_registered_as_trainable;
mod cpu_tensor_on_nccl;
mod data_parallel_in_use;
mod device_zero_on_every_rank;
mod divergent_collective;
mod divergent_forward;
mod find_unused_always_on;
mod fixed_device_in_forward;
mod forward_bypasses_wrapper;
mod fused_step_hides_check;
mod gather_without_grad;
mod global_rank_as_device;
pub(crate) mod invalid_syntax;
mod isinstance_misses_ddp;
mod legacy_launcher_argument;
mod load_before_registration;
mod load_without_map_location;
mod local_rank_guard_on_shared_file;
mod local_value_decides;
mod loss_inside_model;
mod missing_distributed_sampler;
mod missing_set_device;
mod missing_set_epoch;
mod misused_no_sync;
mod module_of_unwrapped_model;
mod non_tensor_forward_output;
mod parameters_changed_after_wrap;
mod parameters_read_on_replica;
mod path_reused;
mod rank_divergent_update;
mod rank_read_before_init;
mod reentrant_checkpoint;
mod registered_alias_lost;
mod repeated_forward_with_buffers;
mod same_seed_on_every_rank;
mod sampler_with_shuffle;
mod shared_path_race;
mod state_dict_prefix_mismatch;
mod state_written_in_forward;
mod summed_loss_scale;
mod undivided_batch_size;
mod uneven_batch_average;
mod uneven_epoch_output;
mod uneven_iterations;
mod unguarded_log;
mod unguarded_save;
mod unguarded_tracker;
mod unknown_suppression;
mod unordered_file_access;
mod unreduced_metric;
mod unregistered_parameters;
mod unregistered_tensor_state;
mod unsorted_variables;
mod unused_submodule;
mod unused_suppression;
mod unwaited_collective;
mod unwrapped_alias_trained;
mod wrong_replica_arguments;
mod wrong_wrap_order;
mod wrong_wrapper;

use crate::rule::Rule;

#[rustfmt::skip]
pub static RULES: &[&Rule] = &[
    &accumulation_without_no_sync::RULE,
    &attribute_of_wrapped_model::RULE,
    &autograd_grad_on_parameters::RULE,
    &bad_device_ids::RULE,
    &batch_reduction_in_forward::RULE,
    &batchnorm_not_synced::RULE,
    &clip_before_unscale::RULE,
    &constant_registered_as_trainable::RULE,
    &cpu_tensor_on_nccl::RULE,
    &data_parallel_in_use::RULE,
    &device_zero_on_every_rank::RULE,
    &divergent_collective::RULE,
    &divergent_forward::RULE,
    &find_unused_always_on::RULE,
    &fixed_device_in_forward::RULE,
    &forward_bypasses_wrapper::RULE,
    &fused_step_hides_check::RULE,
    &gather_without_grad::RULE,
    &global_rank_as_device::RULE,
    &invalid_syntax::RULE,
    &isinstance_misses_ddp::RULE,
    &legacy_launcher_argument::RULE,
    &load_before_registration::RULE,
    &load_without_map_location::RULE,
    &local_rank_guard_on_shared_file::RULE,
    &local_value_decides::RULE,
    &loss_inside_model::RULE,
    &missing_distributed_sampler::RULE,
    &missing_set_device::RULE,
    &missing_set_epoch::RULE,
    &misused_no_sync::RULE,
    &module_of_unwrapped_model::RULE,
    &non_tensor_forward_output::RULE,
    &parameters_changed_after_wrap::RULE,
    &parameters_read_on_replica::RULE,
    &path_reused::RULE,
    &rank_divergent_update::RULE,
    &rank_read_before_init::RULE,
    &reentrant_checkpoint::RULE,
    &registered_alias_lost::RULE,
    &repeated_forward_with_buffers::RULE,
    &same_seed_on_every_rank::RULE,
    &sampler_with_shuffle::RULE,
    &shared_path_race::RULE,
    &state_dict_prefix_mismatch::RULE,
    &state_written_in_forward::RULE,
    &summed_loss_scale::RULE,
    &undivided_batch_size::RULE,
    &uneven_batch_average::RULE,
    &uneven_epoch_output::RULE,
    &uneven_iterations::RULE,
    &unguarded_log::RULE,
    &unguarded_save::RULE,
    &unguarded_tracker::RULE,
    &unknown_suppression::RULE,
    &unordered_file_access::RULE,
    &unreduced_metric::RULE,
    &unregistered_parameters::RULE,
    &unregistered_tensor_state::RULE,
    &unsorted_variables::RULE,
    &unused_submodule::RULE,
    &unused_suppression::RULE,
    &unwaited_collective::RULE,
    &unwrapped_alias_trained::RULE,
    &wrong_replica_arguments::RULE,
    &wrong_wrap_order::RULE,
    &wrong_wrapper::RULE,
];

/// The rule of that name.
pub fn find(name: &str) -> Option<&'static Rule> {
    RULES.binary_search_by(|rule| rule.name.cmp(name)).ok().map(|index| RULES[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_sorted_and_found_by_name() {
        assert!(RULES.is_sorted_by(|a, b| a.name < b.name));
        for rule in RULES {
            assert_eq!(find(rule.name).map(|found| found.name), Some(rule.name));
        }
        assert!(find("no-such-rule").is_none());
    }

    #[test]
    fn each_rule_lies_in_the_file_of_its_name() {
        for rule in RULES {
            let file = format!("rules/{}.rs", rule.name.replace('-', "_"));
            assert!(rule.file.ends_with(&file), "{} lies in {}", rule.name, rule.file);
        }
    }
}

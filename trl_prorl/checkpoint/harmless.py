"""
The keys on which no number of a run depends: where things are written, shown and sent, and how long to wait for them.
"""

HARMLESS = frozenset(
    "output_dir run_dir logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter "
    "log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id "
    "trackio_static_space_id save_only_model save_strategy save_steps save_on_each_node save_total_limit "
    "enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push "
    "hub_revision hub_push_reference dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
    "dataloader_prefetch_factor dataloader_multiprocessing_context skip_memory_metrics resume_from_checkpoint "
    "allow_config_change fast local_rank do_train do_eval do_predict ddp_timeout log_completions log_multimodal "
    "num_completions_to_print log_unique_prompts log_completions_hub_repo include_num_input_tokens_seen "
    "restore_callback_states_from_checkpoint reward_timeout log_update_norm vllm_server_base_url vllm_server_host "
    "vllm_server_port vllm_server_timeout vllm_group_port "
    # Told apart by content: `dataset_hash` and `weights_hash` of trl_prorl/checkpoint/identity.py.
    "model_name_or_path dataset_name".split()
)

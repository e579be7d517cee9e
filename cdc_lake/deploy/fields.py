"""The keys that Databricks knows at the levels of a bundle that this package writes, by its Jobs API.

A test compares them with the `databricks-bundles` of the development environment.
"""

from __future__ import annotations


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


TOP = _keys(
    "artifacts bundle environments experimental include permissions presets python resources run_as scripts sync "
    "targets variables workspace"
)
JOB = _keys(
    "budget_policy_id continuous description duration_target email_notifications environment_variables environments "
    "git_source health job_clusters lifecycle max_concurrent_runs name notification_settings parameters parent_path "
    "performance_target permissions queue run_as schedule tags tasks timeout_seconds trigger triggers usage_policy_id "
    "webhook_notifications"
)
TASK = _keys(
    "ai_runtime_task alert_task clean_rooms_notebook_task compute condition_task dashboard_task dbt_platform_task "
    "dbt_task depends_on description disable_auto_optimization disabled email_notifications environment_key "
    "environment_variables_key existing_cluster_id for_each_task gen_ai_compute_task health job_cluster_key libraries "
    "max_retries min_retry_interval_millis new_cluster notebook_task notification_settings pipeline_task power_bi_task "
    "python_operator_task python_wheel_task retry_on_timeout run_if run_job_task spark_jar_task spark_python_task "
    "spark_submit_task sql_task task_key timeout_seconds webhook_notifications"
)
CLUSTER = _keys(
    "apply_policy_default_values autoscale autotermination_minutes aws_attributes azure_attributes cluster_log_conf "
    "cluster_name custom_tags data_security_mode dependency_mode docker_image driver_instance_pool_id "
    "driver_node_type_flexibility driver_node_type_id enable_elastic_disk enable_local_disk_encryption gcp_attributes "
    "init_scripts instance_pool_id is_single_node kind node_type_id num_workers policy_id remote_disk_throughput "
    "runtime_engine single_user_name spark_conf spark_env_vars spark_version ssh_public_keys "
    "total_initial_remote_disk_size use_ml_runtime worker_node_type_flexibility workload_type"
)
LIBRARY = _keys("cran egg jar maven pypi requirements whl")
WHEEL_TASK = _keys("entry_point named_parameters package_name parameters")
JOB_CLUSTER = _keys("job_cluster_key new_cluster serverless_compute_id")
SCHEDULE = _keys("pause_status quartz_cron_expression sql_condition timezone_id")
CONTINUOUS = _keys("maintenance_window pause_status task_retry_mode")
COMPUTE = ("job_cluster_key", "new_cluster", "existing_cluster_id", "environment_key", "compute")
"""Keys of a task that each name a compute."""

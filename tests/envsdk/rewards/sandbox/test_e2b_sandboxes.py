"""The tests of containers and of bubblewrap again, for the `e2b` backend with a real `envsdk sandboxd`."""

from __future__ import annotations

import pytest

from tests.envsdk.rewards.sandbox import test_e2b_backend as own
from tests.envsdk.rewards.sandbox.test_bubblewrap_sandbox import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_real_containers import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_files import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_git import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_networks import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_attacks_on_processes import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_leftovers import *  # noqa: F403
from tests.envsdk.rewards.sandbox.test_sandbox_output import *  # noqa: F403

# Fixtures of the same names came with the tests.
backend, sandbox, server, start = own.backend, own.sandbox, own.server, own.start

# They look at bubblewrap's files and processes or at an engine's containers, or hold for these alone.
for _name in (
    "test_a_closed_sandbox_says_so",
    "test_a_container_ends_by_itself_when_its_time_is_over",
    "test_a_container_that_went_away_is_infrastructure",
    "test_a_daemon_ends_with_the_command_that_started_it",
    "test_a_fork_bomb_ends_with_its_command",
    "test_a_full_sandbox_can_be_cleaned_up",
    "test_a_launcher_killed_from_outside_is_infrastructure",
    "test_a_memory_hog_is_ended_where_there_are_no_control_groups",
    "test_a_program_without_descriptors_leaves_no_command_running",
    "test_a_state_that_somebody_deleted_is_infrastructure",
    "test_a_server_of_containers_plays_with_e2b_s_sdk",
    "test_a_task_in_a_container_image_is_graded",
    "test_a_terminal_runs_in_a_container",
    "test_a_tree_of_zombies_leaves_nothing",
    "test_an_image_of_a_dockerfile_is_built_once",
    "test_a_tree_that_cannot_be_copied_says_why",
    "test_a_work_tree_that_is_closed_or_emptied_does_not_break_the_sandbox",
    "test_an_interpreter_that_does_not_run_is_an_error",
    "test_cancelling_a_command_ends_it",
    "test_closing_ends_the_command_that_runs",
    "test_containers_that_cannot_be_limited_are_refused",
    "test_files_cannot_hide_in_the_depth",
    "test_idle_sandboxes_hold_no_process_and_no_descriptor",
    "test_images_that_do_not_fit_are_refused",
    "test_limits_end_commands",
    "test_no_file_of_this_program_is_open_inside",
    "test_processes_that_cannot_be_killed_are_infrastructure",
    "test_tests_run_inside",
    "test_the_containers_of_a_killed_program_are_swept",
    "test_the_first_process_cannot_be_ended_or_misled",
    "test_the_interpreter_that_was_asked_for_is_shown",
    "test_the_user_outside_is_not_root",
    "test_this_programs_environment_does_not_leak",
    "test_two_sandboxes_do_not_hear_each_other",
    "test_what_is_left_running_goes_on_until_it_is_ended",
):
    del globals()[_name]

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

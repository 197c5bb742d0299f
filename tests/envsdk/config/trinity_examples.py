"""The example files of Trinity-RFT 0.5.2 by what they ask for, and the list of those that load.

The files themselves are Trinity's and not here: each group names them with the settings, on top of a file of
the same form, that decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_KIND = "algorithm.algorithm_type"
_WORKFLOW = "buffer.explorer_input.default_workflow_type"
_REWARD = "buffer.explorer_input.default_reward_fn_type"
_STEPS = "buffer.total_steps=1"
_JUDGE = "explorer.auxiliary_models=[{model_path: judge}]"

GROUPS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("async_gsm8k/explorer async_gsm8k/trainer grpo_gsm8k/gsm8k grpo_lora_gsm8k/gsm8k", ()),
    ("cispo_gsm8k/gsm8k", (f"{_KIND}=cispo",)),
    ("opmd_gsm8k/opmd_gsm8k", (f"{_KIND}=opmd",)),
    ("topr_gsm8k/gsm8k", (f"{_KIND}=topr",)),
    ("asymre_gsm8k/gsm8k", (f"{_KIND}=asymre",)),
    ("sppo_gsm8k/gsm8k", (f"{_KIND}=sppo",)),
    ("rec_gsm8k/gsm8k", (f"{_KIND}=rec",)),
    ("asymre_math/math bots/random", (f"{_KIND}=asymre", f"{_WORKFLOW}=math_boxed_workflow")),
    ("dapo_math/dapo", (f"{_WORKFLOW}=math_boxed_workflow", f"{_REWARD}=math_dapo_reward")),
    (
        "grpo_math/math",
        (
            f"{_WORKFLOW}=math_rm_workflow",
            f"{_REWARD}=rm_gallery_reward",
            "buffer.explorer_input.taskset.reward_fn_args={reward_name: math_verify_reward}",
        ),
    ),
    (
        "ppo_countdown/countdown ppo_countdown_exp_replay/countdown ppo_countdown_megatron/countdown",
        (f"{_KIND}=ppo", f"{_REWARD}=countdown_reward"),
    ),
    ("grpo_toolcall/toolace", (f"{_WORKFLOW}=toolcall_workflow",)),
    ("grpo_rubric_as_reward/rubric", (f"{_WORKFLOW}=rubric_judge_workflow", _JUDGE)),
    ("grpo_gsm8k_ruler/gsm8k_ruler", (f"{_WORKFLOW}=math_ruler_workflow", _JUDGE)),
    ("grpo_frozen_lake/frozen_lake", (f"{_WORKFLOW}=frozen_lake_workflow", _STEPS)),
    (
        "agentscope_frozenlake/frozenlake_agent",
        (f"{_WORKFLOW}=examples.agentscope_frozenlake.workflow.FrozenLakeWorkflow", _STEPS),
    ),
    ("grpo_alfworld/alfworld", (f"{_WORKFLOW}=alfworld_workflow", _STEPS)),
    (
        "grpo_alfworld_general_multi_step/alfworld",
        (f"{_KIND}=multi_step_grpo", f"{_WORKFLOW}=step_wise_alfworld_workflow", _STEPS),
    ),
    ("grpo_webshop/webshop", (f"{_WORKFLOW}=webshop_workflow", _STEPS)),
    ("agentscope_react/gsm8k", (f"{_WORKFLOW}=agentscope_react_workflow",)),
    ("agentscope_tool_react/agentscopev1_tool_react_dapo", (f"{_WORKFLOW}=agentscope_react_math_workflow",)),
    (
        "agentscope_tool_react/agentscopev0_tool_react_dapo "
        "agentscope_tool_react/agentscopev0_tool_react_gsm8k",
        (f"{_WORKFLOW}=agentscopev0_react_math_workflow",),
    ),
    (
        "agentscope_websearch/agentscopev1_websearch_agent",
        (f"{_WORKFLOW}=agentscope_v1_react_search_workflow", _JUDGE),
    ),
    ("RAFT_alfworld/RAFT_alfworld_7B RAFT_alfworld/RAFT_reflect_alfworld_7B", (f"{_KIND}=raft",)),
    ("bench/external_model", ("model.external_model={enable: true}",)),
    (
        "bots/bots",
        (
            f"{_WORKFLOW}=bots_math_boxed_workflow",
            "buffer.explorer_input.taskset.task_selector={selector_type: difficulty_based, "
            "feature_keys: [a], kwargs: {m: 16, target_reward: 0.5, tau: 0, do_sample: true}}",
            "data_processor.experience_pipeline.operators=[{name: pass_rate_calculator}]",
        ),
    ),
    ("bots/ref_eval_collect", (f"{_WORKFLOW}=bots_ref_eval_collect_math_boxed_workflow",)),
    ("dpo_human_in_the_loop/dpo dpo_humanlike/dpo", (f"{_KIND}=dpo",)),
    ("entropy/clipb", ("algorithm.advantage_fn=clipb",)),
    ("entropy/clipv", ("algorithm.advantage_fn=clipv",)),
    ("grpo_email_search/email_search", (f"{_WORKFLOW}=email_search_workflow",)),
    (
        "grpo_gsm8k_experience_pipeline/gsm8k",
        ("data_processor.experience_pipeline.operators=[{name: data_juicer}]",),
    ),
    ("grpo_gsm8k_task_pipeline/gsm8k", ("data_processor.task_pipeline={operators: [{name: x}]}",)),
    ("grpo_gsm8k_trainable_ruler/gsm8k_ruler", (f"{_WORKFLOW}=math_trainable_ruler_workflow",)),
    ("grpo_sciworld/sciworld", (f"{_WORKFLOW}=sciworld_workflow",)),
    ("grpo_vlm/vlm mix_vlm/mix_vlm", ("buffer.explorer_input.taskset.format.image_key=images",)),
    (
        "learn_to_ask/train",
        (f"{_WORKFLOW}=examples.learn_to_ask.workflow.workflow_learn2ask.Learn2AskWorkflow",),
    ),
    ("mix_chord/mix_chord mix_chord/mix_chord_toolace", (f"{_KIND}=mix_chord",)),
    ("mix_math/mix_math", (f"{_KIND}=mix",)),
    (
        "opd_gsm8k/opd_gsm8k",
        (f"{_KIND}=on_policy_distill", f"{_WORKFLOW}=on_policy_distill_workflow", _JUDGE),
    ),
    ("opd_gsm8k/opd_gsm8k_jsd", (f"{_KIND}=jsd",)),
    ("sft_mot/sft", (f"{_KIND}=sft",)),
    ("tinker/tinker", ("model.tinker={enable: true}",)),
)


def examples_list(reason: Callable[[tuple[str, ...]], str]) -> str:
    """Markdown: how many files load, and those that have a `reason(overrides)` why they do not."""
    named = [(name, overrides) for names, overrides in GROUPS for name in names.split()]
    refused = [f"`{name}`" for name, overrides in named if reason(overrides)]
    return (
        f"{len(named) - len(refused)} of the {len(named)} load. "
        f"`--explain` says of the others why not, and what to do: {', '.join(refused)}."
    )

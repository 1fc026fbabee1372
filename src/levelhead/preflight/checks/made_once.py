"""What reaches the trainer is what was sampled, behind the prompt of its group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class MadeOnce(Check):
    """Compares what the sampler returned with what comes out of the collector, id for id."""

    name = "tokens/made-once"
    needs = "rollouts"
    proves = Message(
        "The completions that reach the trainer are the tokens that were sampled, none added, dropped or made anew, "
        "and each was sampled behind the prompt of its group.",
        "到达训练端的输出正是采样得到的 token，没有增加、丢失或重新分词，而且都是在本组的提示词之后采样的。",
    )
    how = Message(
        "Remembers what the sampler returns and compares it with what comes out of the collector.",
        "记下采样端返回的内容，与收集之后的比较。",
    )
    cannot = Message(
        "It cannot see a sampler that returns other tokens than it sampled; agreement/sampler does.",
        "采样端返回的不是它采样的 token 时这里看不出来，由 agreement/sampler 检查。",
    )
    right = Message("completions are exactly the tokens that were sampled", "输出正是采样得到的 token")
    changed = Message(
        "{count} of {all} completions are not the tokens that were sampled: {sampled} was sampled and {arrived} "
        "arrived",
        "{all} 条输出中有 {count} 条不是采样得到的 token：采样得到 {sampled}，收到的却是 {arrived}",
        fix=Fix(
            "pass the sampled ids on; never decode and tokenize again, append or cut on the way",
            "原样传递采样得到的 id；途中绝不要解码再分词、追加或截断",
        ),
    )
    other_prompt = Message(
        "a rollout in the group of prompt {id!r} has read another prompt: {length} tokens, where its own has {wanted}",
        "题目 {id!r} 的组里有一条采样读的是别的提示词：{length} 个 token，而它自己的有 {wanted} 个",
        fix=Fix(
            "order completions prompt by prompt, k of each, as prompts are ordered",
            "输出按题目的顺序排列，每题 k 条连在一起",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome."""
        from levelhead.preflight.rendering import parting, spelled

        sampled = [turn for _, turns in context.sampled.turns for turn in turns]
        pairs = {(turn.context_ids, turn.completion_ids) for turn in sampled}
        arrived = context.turns
        changed = [turn for turn in arrived if (turn.context_ids, turn.completion_ids) not in pairs]
        if changed:
            first = changed[0]
            same = [turn for turn in sampled if turn.context_ids == first.context_ids] or sampled
            near = max(same, key=lambda turn: parting(turn.completion_ids, first.completion_ids))
            fields: dict[str, Any] = {
                "sampled": spelled(context.codec, near.completion_ids[-5:]),
                "arrived": spelled(context.codec, first.completion_ids[-5:]),
            }
            yield self.fail(self.changed, count=len(changed), all=len(arrived), **fields)
            return
        for group in context.sampled.groups:
            wanted = context.codec.render(group.prompt.messages, group.prompt.chat)
            single = context.is_single(context.setup.tasks[group.prompt.task])
            for rollout in group.rollouts if single else ():
                ids = rollout.turns[0].context_ids
                if rollout.prompt_id != group.prompt.id or tuple(ids) != tuple(wanted):
                    yield self.fail(self.other_prompt, id=group.prompt.id, length=len(ids), wanted=len(wanted))
                    return
        yield self.ok(self.right)

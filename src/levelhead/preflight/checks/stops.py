"""Turns end where the template ends them, and stop tokens stand where they were sampled."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome


class EndOfTurn(Check):
    """Compares the tokens with which the template closes a turn with those at which the sampler stops."""

    name = "stops/complete"
    needs = "data"
    proves = Message(
        "A policy that writes the template's end-of-turn token is stopped there.",
        "策略写出模板的对话结束符时会在那里停下。",
    )
    how = Message(
        "Renders closed turns, finds the tokens that close them, and looks them up in the stop set.",
        "渲染已结束的轮次，找出结束它们的 token，并在停止符集合中查找。",
    )
    cannot = Message(
        "It cannot tell whether the policy will ever write it; completions/clipped_ratio of the run does.",
        "它不知道策略会不会写出结束符；训练中的 completions/clipped_ratio 会显示。",
    )
    right = Message(
        "every end-of-turn of the template stops a completion ({ends})", "模板的每个对话结束符都会结束输出（{ends}）"
    )
    none = Message(
        "the template closes turns with no token of its own; completions end with {stop}",
        "模板没有专门的对话结束符；输出以 {stop} 结束",
    )
    missed = Message(
        "the template closes turns with {token!r}, and the sampler does not stop there: it stops at {stops}",
        "模板以 {token!r} 结束一轮，采样端却不在那里停下：它只在 {stops} 停下",
        fix=Fix(
            "put the template's end-of-turn into the stop set (generation_config.eos_token_id, or the tokenizer's eos)",
            "把模板的对话结束符加入停止符（generation_config.eos_token_id，或分词器的 eos）",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Compare the template's end of turn with the stop set."""
        from levelhead.text.evidence import read
        from levelhead.text.stops import end_of_turn_ids

        codec = context.codec
        ends = end_of_turn_ids(codec.tokenizer, codec.template)
        evidence = {"stop_set": [{"token": s.text, "id": s.id, "from": list(s.sources)} for s in codec.stops]}
        missed = [token for token in ends if token not in codec.stop_ids]
        if missed:
            stops = ", ".join(stop.text for stop in codec.stops)
            yield self.fail(self.missed, evidence=evidence, token=read(codec, missed)[0].text, stops=stops)
        elif not ends:
            yield self.ok(self.none, evidence=evidence, stop=codec.stops[0].text)
        else:
            yield self.ok(self.right, evidence=evidence, ends=", ".join(t.text for t in read(codec, ends)))


class SpecialTokens(Check):
    """Reads padding, end and first tokens off tokenizer, template and generation config."""

    name = "stops/special-tokens"
    needs = "data"
    proves = Message(
        "Padding, end and first tokens do not collide in a way that hides a label or changes a prompt.",
        "填充符、结束符和起始符的冲突不会遮住标签，也不会改变提示词。",
    )
    how = Message(
        "Reads them off tokenizer, template and generation config.", "从分词器、模板和生成配置中读取这些 token。"
    )
    cannot = Message(
        "It judges the ids. Whether a mask really hides a stop token is measured by loss/completion-only.",
        "它只看 id；掩码是否真的遮住停止符由 loss/completion-only 测量。",
    )
    right = Message("padding, end and first tokens do not collide", "填充符、结束符和起始符没有冲突")
    pad_missing = Message(
        "the tokenizer has no padding token; {token} stands in, and no mask is computed from it",
        "分词器没有填充符；以 {token} 代替，掩码不由它计算",
    )
    pad_is_stop = Message(
        "the padding token {token} also ends turns; masks come from lengths here, so stop tokens are trained all the "
        "same",
        "填充符 {token} 同时也结束一轮；这里的掩码由长度得出，停止符照样参与训练",
    )
    eos_is_not_end_of_turn = Message(
        "turns end with {token}, and the tokenizer's eos is {eos}; both stop completions, and checkpoints list both",
        "一轮以 {token} 结束，而分词器的 eos 是 {eos}；两者都会结束输出，检查点也会列出两者",
    )
    untaught_end = Message(
        "the chat template of the recipe ends turns with {token}, and the model's own end is {eos}: a policy that "
        "nobody has taught {token} ends its answers with {eos}, and earlier turns in a prompt end otherwise",
        "配方的对话模板以 {token} 结束一轮，而模型自己的结束符是 {eos}：没有学过 {token} 的策略会以 {eos} 结束回答，与"
        "提示词中更早的轮次不同",
        fix=Fix(
            "let the template end turns with {eos} (model.chat_template: FILE), or teach the end first (sft)",
            "让模板以 {eos} 结束一轮（model.chat_template: FILE），或先用监督微调教会它",
        ),
    )
    end_of_turn_is_text = Message(
        "the chat template closes an assistant's turn with no token of its own; {token} is put there and ends "
        "completions, but earlier turns in a prompt do not show it",
        "对话模板没有专门的 token 结束助手的一轮；这里放入 {token} 来结束输出，但提示词中更早的轮次里没有它",
        fix=Fix(
            "let the template close assistant turns with {token} (model.chat_template: FILE)",
            "让模板以 {token} 结束助手的轮次（model.chat_template: FILE）",
        ),
    )
    bos_missing = Message(
        "the tokenizer starts texts with {token}, and the chat template does not write it",
        "分词器以 {token} 作为文本的开头，而对话模板没有写它",
        fix=Fix(
            "start the template with {{{{ bos_token }}}} if the model was trained with one",
            "如果模型训练时用了它，请让模板以 {{{{ bos_token }}}} 开头",
        ),
    )
    bos_doubled = Message(
        "a prompt starts with {count} times {token}",
        "提示词开头有 {count} 个 {token}",
        fix=Fix("let the template write {token} once", "让模板只写一个 {token}"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome: the worst finding."""
        codec = context.codec
        judgements = codec.judgements
        evidence = {
            "pad": str(codec.tokenizer.convert_ids_to_tokens(codec.pad_id)),
            "stop": [stop.text for stop in codec.stops],
            "pad_is_stop": codec.pad_collides,
            "judgements": sorted(judgements),
        }
        bos, stop = str(codec.tokenizer.bos_token), codec.stops[0].text
        if "bos-doubled" in judgements:
            ids = next(iter(context.prompts.values()))[0].token_ids
            count = next((i for i, token in enumerate(ids) if token != codec.tokenizer.bos_token_id), len(ids))
            yield self.warn(self.bos_doubled, evidence=evidence, token=bos, count=count)
        elif "bos-missing" in judgements:
            yield self.warn(self.bos_missing, evidence=evidence, token=bos)
        elif "end-of-turn-is-text" in judgements:
            yield self.warn(self.end_of_turn_is_text, evidence=evidence, token=stop)
        elif "eos-is-not-end-of-turn" in judgements:
            eos, recipe = str(codec.tokenizer.eos_token), context.recipe
            if recipe.model.chat_template is not None and recipe.sft is None:
                yield self.warn(self.untaught_end, evidence=evidence, token=stop, eos=eos)
                return
            yield self.ok(self.eos_is_not_end_of_turn, evidence=evidence, token=stop, eos=eos)
        elif "pad-is-stop" in judgements:
            yield self.ok(self.pad_is_stop, evidence=evidence, token=evidence["pad"])
        elif "pad-missing" in judgements:
            yield self.ok(self.pad_missing, evidence=evidence, token=stop)
        else:
            yield self.ok(self.right, evidence=evidence)


class DemonstrationEnd(Check):
    """Counts the stop tokens of demonstrations."""

    name = "loss/stop-token"
    needs = "data"
    proves = Message("Every demonstration ends with one stop token.", "每条示范都以一个停止符结尾。")
    how = Message("Counts stop tokens in demonstrations as they are trained on.", "统计训练所用的示范中的停止符。")
    cannot = Message(
        "It looks at two prompts per task; whether the policy stops by itself shows while it trains.",
        "每个任务只看两条提示词；策略是否会自己停下，要在训练中看。",
    )
    right = Message(
        "a stop token stands at the end of {shown} demonstrations, once each", "{shown} 条示范的末尾各有一个停止符"
    )
    demonstration = Message(
        "a demonstration holds {stops} stop tokens and ends with {end}: the policy never learns to end",
        "一条示范含 {stops} 个停止符，结尾是 {end}：策略学不会结束",
        fix=Fix(
            "check the chat template: it must close the assistant's turn with a stop token",
            "检查对话模板：它应以停止符结束助手的一轮",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where there is a supervised stage."""
        from levelhead.preflight.rendering import spelled

        codec = context.codec
        pairs = [pair for prompts in context.prompts.values() for pair in context.demonstrations(prompts[:2])]
        for pair in pairs:
            stops = sum(token in codec.stop_ids for token in pair.completion_ids)
            if stops != 1 or pair.completion_ids[-1] not in codec.stop_ids:
                yield self.fail(self.demonstration, stops=stops, end=spelled(codec, pair.completion_ids[-2:]))
                return
        if pairs:
            yield self.ok(self.right, shown=len(pairs))

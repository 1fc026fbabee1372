"""Runs inside an environment that has vLLM, and nothing of ours: loads an export and answers chats greedily.

python vllm_draws.py FOLDER < chats.json > answers.json
"""

import json
import os
import sys

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def main() -> None:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    asked = json.loads(sys.stdin.read())
    llm = LLM(
        model=sys.argv[1],
        dtype="float32",  # unless told, vLLM computes in bfloat16 with weights of float32
        enforce_eager=True,
        max_model_len=asked["context"],
        max_num_batched_tokens=32768,
        max_num_seqs=16,
    )
    controls = SamplingParams(temperature=0.0, max_tokens=asked["max_new_tokens"], logprobs=0)
    rows = []
    for output in llm.chat(asked["chats"], controls, use_tqdm=False):
        (answer,) = output.outputs
        ids = list(answer.token_ids)
        logprobs = [step[token].logprob for step, token in zip(answer.logprobs, ids, strict=True)]
        rows.append({"context": list(output.prompt_token_ids), "ids": ids, "logprobs": logprobs, "text": answer.text})
    print("\n" + json.dumps(rows))


if __name__ == "__main__":
    main()

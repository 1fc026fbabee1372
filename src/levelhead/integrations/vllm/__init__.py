"""Levelhead inside vLLM: the server's side of ``generator.sync: files``, a backend of its weight transfer.

vLLM finds it by the entry point ``vllm.general_plugins`` wherever Levelhead is installed beside it; the light
installation is enough.
"""

from __future__ import annotations


def register() -> None:
    """Offer the backend ``files`` to ``vllm serve --weight-transfer-config``; every process of vLLM calls it once."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "files" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("files", "levelhead.integrations.vllm.files", "FilesEngine")

"""What a GPU can do at most: matrix products in bfloat16, and memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """Floating-point operations a second (dense bfloat16, sums in float32), and bytes a second of memory."""

    flops: float
    bandwidth: float


PEAKS: tuple[tuple[str, Peak], ...] = (
    # NVIDIA's data sheets; where they give sparse products, half of that.  The first name that a device's contains.
    ("H200", Peak(989e12, 4.8e12)),  # H200 SXM: 1,979 with sparsity, 4.8 TB/s
    ("H100 NVL", Peak(835e12, 3.9e12)),  # H100 NVL: 1,671 with sparsity, 3.9 TB/s
    ("H100 PCIe", Peak(756e12, 2.0e12)),  # H100 PCIe: 1,513 with sparsity, 2 TB/s
    ("H100", Peak(989e12, 3.35e12)),  # H100 SXM: 1,979 with sparsity, 3.35 TB/s
    ("A100-SXM4-40GB", Peak(312e12, 1.555e12)),  # A100 40GB
    ("A100-PCIE-40GB", Peak(312e12, 1.555e12)),
    ("A100 80GB PCIe", Peak(312e12, 1.935e12)),  # A100 80GB PCIe
    ("A100", Peak(312e12, 2.039e12)),  # A100 80GB SXM
    ("L40S", Peak(362e12, 0.864e12)),  # L40S: 733 with sparsity, 864 GB/s
    ("L4", Peak(121e12, 0.3e12)),  # L4: 242 with sparsity, 300 GB/s
    ("A10", Peak(125e12, 0.6e12)),  # A10: 125 dense, 600 GB/s
    ("RTX 4090", Peak(165.2e12, 1.008e12)),  # Ada whitepaper, appendix A: FP16 with FP32 accumulate
    ("RTX 3090", Peak(71e12, 0.936e12)),  # GA102 whitepaper, table 9: FP16 with FP32 accumulate
)


def peak_of(name: str) -> Peak | None:
    """The peak of a device by its name; ``None`` where it is not in the table."""
    return next((peak for part, peak in PEAKS if part.lower() in name.lower()), None)

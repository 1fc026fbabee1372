"""Chinese headings in English words, so that one list of names and one set of rules serve both languages."""

from __future__ import annotations

import re

_WORDS = {
    "reward": "奖励 奖赏 回报",
    "score": "得分 分数 评分",
    "std": "标准差 标准偏差 离散度",
    "variance": "方差",
    "mean": "平均值 均值 平均",
    "max": "最大值 最大 最高",
    "min": "最小值 最小 最低",
    "entropy": "信息熵 熵值 熵",
    "policy": "策略",
    "loss": "损失值 损失",
    "total": "总体 总",
    "grad norm": "梯度范数 梯度模长 梯度模 梯度大小 梯度",
    "learning rate": "学习率 学习速率",
    "completion": "生成 回复 回答 响应 输出 补全 答案",
    "length": "长度 字数 词数",
    "truncated": "截断 超长",
    "ratio": "比例 占比 比率 率 比",
    "step": "训练步数 训练步 步数 步骤 步 迭代次数 迭代 轮数",
    "epoch": "轮次 周期",
    "group": "小组 组",
    "zero": "零 无",
    "advantage": "优势",
    "accuracy": "准确率 正确率 准确度 精度",
    "format": "格式",
    "eval": "验证集 验证 测试集 测试 评测 评估",
    "clip": "裁剪 剪裁",
    "divergence": "散度",
    "token": "词元",
    "time": "耗时 用时 时间",
    "valid": "有效 合法",
    "parse": "解析",
    "temperature": "温度",
    "reference": "参考",
    "train": "训练",
    "within group": "组内",
}
_ENGLISH = {chinese: english for english, words in _WORDS.items() for chinese in words.split()}
_ANY = re.compile("|".join(sorted(_ENGLISH, key=len, reverse=True)))
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_FILLING = re.compile(r"[的数值每\uff08\uff09]")


def is_chinese(heading: str) -> bool:
    """Whether a heading has Chinese characters in it."""
    return _CHINESE.search(heading) is not None


def in_english(heading: str) -> str | None:
    """A heading of known Chinese words in English ones; ``None`` where a word is not known.

    ``in_english("平均生成长度")`` is ``"mean completion length"``.
    """
    spelt = _ANY.sub(lambda match: f" {_ENGLISH[match.group()]} ", heading)
    spelt = _FILLING.sub(" ", spelt)
    return None if is_chinese(spelt) else " ".join(spelt.split())

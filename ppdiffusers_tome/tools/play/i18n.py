"""The words of the page in English and Chinese."""
# ruff: noqa: RUF001

from __future__ import annotations

import re

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "header": "# Token merging, before and after\nThe same image from the same noise, without and with token "
        "merging. Model: {model} · {device} · {dtype} · [中文](?language=zh)",
        "prompt": "Prompt",
        "examples": "Examples",
        "class": "Class",
        "merging": "Token merging",
        "own": "custom",
        "method": "Method",
        "ratio": "Ratio",
        "ratio_info": "fraction of the tokens that merge",
        "with_map": "Show which tokens merged (generates the merged image once more)",
        "cache": "Cache over steps",
        "cache_info": "fraction of the steps that skip most layers; 0: off",
        "options": "Seed, size, steps, guidance, negative prompt",
        "seed": "Seed",
        "width": "Width",
        "height": "Height",
        "steps": "Steps",
        "guidance": "Guidance scale",
        "negative_prompt": "Negative prompt",
        "guide": "Guide by the edges of an image (ControlNet)",
        "photo": "Your image: {formats}, at most {mebibytes} MiB",
        "low": "Lower Canny threshold",
        "high": "Upper Canny threshold",
        "strength": "Strength",
        "generate": "Generate",
        "cancel": "Cancel",
        "first": "Press “Generate”: two images are generated from the same noise, one without and one with token "
        "merging. On a CPU this takes a minute with the bundled model. Drag the slider between them, and compare "
        "seconds, memory and similarity.",
        "warm_up": "Warming up, not timed",
        "unmerged_image": "Generating without token merging",
        "merged_image": "Generating with token merging",
        "calls": "steps",
        "map": "Generating once more to trace which tokens merge",
        "cancelled": "Cancelled.",
        "unmerged": "unmerged",
        "merged": "merged",
        "slider": "Slider between the unmerged and the merged image",
        "speedup": "speed-up",
        "identical": "identical",
        "seconds": "seconds",
        "memory": "peak memory while denoising",
        "settings_note": "merged with: {settings}",
        "measured_note": "Seconds are of the whole image, text encoder and decoding included, each measured once in "
        "this process after a warm-up step.",
        "reused_note": "The unmerged image was generated at {time} and is reused: if this machine is busier now than "
        "then, or less busy, the speed-up is off.",
        "map_title": "Which tokens merged",
        "map_note": "Merged tokens have the mean color of their group and its outline; tokens without an outline did "
        "not merge. The background is the finished image, the groups are those of the step.",
        "map_none": "With these settings no tokens merge into groups; choose a method such as “tome” for a map.",
        "map_step": "step {call} of {calls}",
        "map_average": "all steps: the redder, the more often a token merged",
        "map_slider": "Step to show",
        "map_caption": "{block}: {merged} of {tokens} tokens merged away",
        "edges": "its edges",
        "too_long": "{detail}.",
        "unknown_subject": "The bundled model cannot generate this: {detail}.",
        "unusual_size": "The bundled model was made for 512x512; at this size its images are smeared.",
        "no_edges": "The image has no edges with these thresholds, so it guides nothing; lower them.",
        "cache_steps": "Steps in which the cache skipped most layers: {detail}. Of few steps it skips none.",
        "error": "Not possible",
        "no_prompt": "The prompt is empty; describe the image.",
        "long_prompt": "The prompt has {length} characters; at most {most} are accepted.",
        "unknown_class": "There is no such class: {detail}.",
        "bad_number": "{field} {value} does not work; give a number from {least} to {most}.",
        "bad_multiple": "{field} {value} does not work; give a multiple of {multiple}, such as {nearest}.",
        "bad_thresholds": "The lower threshold {low} is above the upper one, {high}; 100 and 200 are usual.",
        "bad_settings": "These settings of token merging do not work: {detail}.",
        "nothing_merges": "Ratio 0 merges nothing, so there is nothing to compare; give more, such as 0.5.",
        "too_large": "The image does not fit into the memory of this machine: {detail}.",
        "no_image": "The file cannot be read as an image; choose one of {formats}.",
        "large_photo": "The image has {width}x{height} pixels; choose one of at most {most} megapixels.",
        "failed": "The image could not be generated: {detail}.",
        "out_of_memory": "There is not enough memory; generate a smaller image.",
        "broken": "The image could not be generated; the reason is on the terminal that runs this page.",
    },
    "zh": {
        "header": "# Token 合并前后对比\n同一噪声、同一张图，对比不合并与合并 token 的结果。"
        "模型：{model} · {device} · {dtype} · [English](?language=en)",
        "prompt": "提示词",
        "examples": "示例",
        "class": "类别",
        "merging": "Token 合并",
        "own": "自定义",
        "method": "方法",
        "ratio": "合并率",
        "ratio_info": "合并掉的 token 所占的比例",
        "with_map": "显示哪些 token 合并了（需再生成一次合并后的图）",
        "cache": "跨步缓存",
        "cache_info": "跳过大部分层的步数所占的比例；0 表示关闭",
        "options": "种子、尺寸、步数、引导系数、负向提示词",
        "seed": "种子",
        "width": "宽度",
        "height": "高度",
        "steps": "步数",
        "guidance": "引导系数",
        "negative_prompt": "负向提示词",
        "guide": "用一张图的边缘引导（ControlNet）",
        "photo": "你的图片：{formats}，不超过 {mebibytes} MiB",
        "low": "Canny 低阈值",
        "high": "Canny 高阈值",
        "strength": "引导强度",
        "generate": "生成",
        "cancel": "取消",
        "first": "点击“生成”：从同一噪声生成两张图，一张不合并 token，一张合并；自带的模型在 CPU 上约需一分钟。"
        "拖动滑块对比，并查看耗时、内存和保真度。",
        "warm_up": "预热中，不计时",
        "unmerged_image": "正在生成：不合并 token",
        "merged_image": "正在生成：合并 token",
        "calls": "步",
        "map": "正在再次生成，以记录哪些 token 合并",
        "cancelled": "已取消。",
        "unmerged": "不合并",
        "merged": "合并",
        "slider": "在不合并与合并的图之间滑动",
        "speedup": "加速比",
        "identical": "完全相同",
        "seconds": "耗时",
        "memory": "去噪时的峰值内存",
        "settings_note": "合并设置：{settings}",
        "measured_note": "耗时为生成整张图的时间，含文本编码和解码；两者都在本进程中预热一步后各测一次。",
        "reused_note": "不合并的图生成于 {time}，此处沿用：如果当时机器的负载与现在不同，加速比会有偏差。",
        "map_title": "哪些 token 合并了",
        "map_note": "合并的 token 填充本组的平均色，并带有本组的描边；没有描边的 token 没有合并。"
        "底图是最终的图，组则来自当前步。",
        "map_none": "使用这些设置时 token 不会合并成组；要查看合并图，请选择 tome 等方法。",
        "map_step": "第 {call} 步，共 {calls} 步",
        "map_average": "全部步：越红表示该 token 合并得越频繁",
        "map_slider": "显示第几步",
        "map_caption": "{block}：{tokens} 个 token 中合并掉 {merged} 个",
        "edges": "提取的边缘",
        "too_long": "提示词过长，超出部分被忽略（{detail}）。",
        "unknown_subject": "自带的小模型画不出这个提示词的内容：{detail}。",
        "unusual_size": "自带的小模型只适合 512x512，用这个尺寸生成的图会模糊或残缺。",
        "no_edges": "在这些阈值下没有提取到边缘，图片不起引导作用；请调低阈值。",
        "cache_steps": "缓存跳过大部分层的步数：{detail}。步数较少时不跳过。",
        "error": "无法生成",
        "no_prompt": "提示词为空，请写明要生成的内容。",
        "long_prompt": "提示词有 {length} 个字符，最多 {most} 个。",
        "unknown_class": "没有这个类别：{detail}。",
        "bad_number": "{field} {value} 无效，请填 {least} 到 {most} 之间的数。",
        "bad_multiple": "{field} {value} 无效，请填 {multiple} 的倍数，例如 {nearest}。",
        "bad_thresholds": "低阈值 {low} 高于高阈值 {high}；通常为 100 和 200。",
        "bad_settings": "这些合并设置无效：{detail}。",
        "nothing_merges": "合并率为 0 时什么也不合并，无从对比；请调高，例如 0.5。",
        "too_large": "图太大，本机内存不够：{detail}。",
        "no_image": "无法作为图片读取，请选择以下格式的文件：{formats}。",
        "large_photo": "图片为 {width}x{height} 像素，请选择不超过 {most} 百万像素的图片。",
        "failed": "无法生成：{detail}。",
        "out_of_memory": "内存不足，请减小图的尺寸。",
        "broken": "无法生成，原因见运行本页的终端。",
    },
}
# The package's own names and sentences, which the English page shows as they are.
CHINESE = {
    "quality": "quality（质量）",
    "balanced": "balanced（均衡）",
    "fast": "fast（快速）",
    "tome": "tome：相似的 token 取平均值，之后各自得到该组的结果",
    "prune": "prune：相似的 token 中只保留目标 token，之后各自得到它的结果",
    "tofu": "tofu：前一半 block 剪除，后一半合并并保持 token 的范数",
    "keys": "keys：保留所有 query；相似 token 的 key 和 value 合并，并按其所含 token 的个数计入",
    "pool": "pool：保留所有 query；每个步幅单元的 key 和 value 取平均值",
    "todo": "todo：key/value 下采样：保留所有 query，只用部分 token 的 key 和 value",
}


def translate(language: str, key: str, **values: object) -> str:
    """Return the words for a key, with the values in their places."""
    return WORDS[language][key].format(**values)


def choose_language(accept_language: str) -> str:
    """Return the language that an ``Accept-Language`` header prefers, or English.

    Example:
        >>> choose_language("fr, zh-CN;q=0.8, en;q=0.5")
        'zh'
    """
    found = re.findall(r"\b(en|zh)\b[\w-]*\s*(?:;\s*q=(\d(?:\.\d{1,3})?))?", accept_language[:500].lower())
    return max(found, key=lambda match: float(match[1] or 1), default=("en", ""))[0]

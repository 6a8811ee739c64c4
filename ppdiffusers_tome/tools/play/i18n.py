"""The words of the page in English and Chinese."""
# ruff: noqa: RUF001

from __future__ import annotations

import re

LANGUAGES = ("en", "zh")
# fmt: off
WORDS = {
    "header": ("# Token merging, before and after\nThe same image from the same noise, without and with token "
               "merging. Model: {model} · {device} · {dtype}",
               "# Token 合并前后对比\n同一噪声、同一张图，对比不合并与合并 token 的结果。模型：{model} · {device} · "
               "{dtype}"),
    "prompt": ("Prompt", "提示词"),
    "examples": ("Examples", "示例"),
    "class": ("Class", "类别"),
    "merging": ("Token merging", "Token 合并"),
    "own": ("custom", "自定义"),
    "none": ("none", "不合并"),
    "method": ("Method", "方法"),
    "ratio": ("Ratio", "合并率"),
    "ratio_info": ("fraction of the tokens that merge", "合并掉的 token 所占的比例"),
    "cache": ("Cache over steps", "跨步缓存"),
    "cache_info": ("fraction of the steps that skip most layers; 0: off", "跳过大部分层的步数所占的比例；0 表示关闭"),
    "end": ("Part of the denoising that merges", "合并所占的去噪过程"),
    "end_info": ("0.8 leaves the last fifth of the steps whole; 1: all merge",
                 "0.8 表示最后五分之一的步不合并；1 表示全部合并"),
    "options": ("Seed, size, steps, guidance, negative prompt", "种子、尺寸、步数、引导系数、负向提示词"),
    "seed": ("Seed", "种子"),
    "width": ("Width", "宽度"),
    "height": ("Height", "高度"),
    "steps": ("Steps", "步数"),
    "guidance": ("Guidance scale", "引导系数"),
    "negative_prompt": ("Negative prompt", "负向提示词"),
    "guide": ("Guide by the edges of an image (ControlNet)", "用一张图的边缘引导（ControlNet）"),
    "photo": ("Your image: {formats}, at most {mebibytes} MiB", "你的图片：{formats}，不超过 {mebibytes} MiB"),
    "low": ("Lower Canny threshold", "Canny 低阈值"),
    "high": ("Upper Canny threshold", "Canny 高阈值"),
    "strength": ("Strength", "引导强度"),
    "generate": ("Generate", "生成"),
    "cancel": ("Cancel", "取消"),
    "first": ("Press “Generate”: two images are generated from the same noise, one without and one with token "
              "merging. On a CPU this takes a minute with the bundled model. Drag the slider between them, and "
              "compare seconds, memory and similarity.",
              "点击“生成”：从同一噪声生成两张图，一张不合并 token，一张合并；自带的模型在 CPU 上约需一分钟。拖动滑块"
              "对比，并查看耗时、内存和保真度。"),
    "known": ("The bundled model knows ten subjects and no others: {subjects}.",
              "自带的模型只认识这十种内容：{subjects}。"),
    "merged_follows": ("The unmerged image. The merged one follows.", "这是不合并的图；合并的图随后生成。"),
    "warm_up": ("Warming up, not timed", "预热中，不计时"),
    "unmerged_image": ("Generating without token merging", "正在生成：不合并 token"),
    "merged_image": ("Generating with token merging", "正在生成：合并 token"),
    "calls": ("steps", "步"),
    "unmerged": ("unmerged", "不合并"),
    "merged": ("merged", "合并"),
    "slider": ("Slider between the unmerged and the merged image", "在不合并与合并的图之间滑动"),
    "speedup": ("speed-up", "加速比"),
    "identical": ("identical", "完全相同"),
    "seconds": ("seconds", "耗时"),
    "memory": ("peak memory while denoising", "去噪时的峰值内存"),
    "settings_note": ("merged with: {settings}", "合并设置：{settings}"),
    "measured_note": ("Seconds are of the whole image, text encoder and decoding included, each measured once in this "
                      "process after a warm-up step.",
                      "耗时为生成整张图的时间，含文本编码和解码；两者都在本进程中预热一步后各测一次。"),
    "reused_note": ("The unmerged image is that of the comparison before: if this machine is busier now than then, or "
                    "less busy, the speed-up is off.",
                    "不合并的图沿用上一次对比的结果：如果当时机器的负载与现在不同，加速比会有偏差。"),
    "edges": ("its edges", "提取的边缘"),
    "too_long": ("{detail}.", "提示词过长，超出部分被忽略（{detail}）。"),
    "negative_too_long": ("{detail}.", "负向提示词过长，超出部分被忽略（{detail}）。"),
    "unknown_subject": ("The bundled model cannot generate this: {detail}.",
                        "自带的小模型画不出这个提示词的内容：{detail}。"),
    "unusual_size": ("The bundled model was made for 512x512; at this size its images are smeared.",
                     "自带的小模型只适合 512x512，用这个尺寸生成的图会模糊或残缺。"),
    "no_edges": ("The image has no edges with these thresholds, so it guides nothing; lower them.",
                 "在这些阈值下没有提取到边缘，图片不起引导作用；请调低阈值。"),
    "cache_steps": ("Steps in which the cache skipped most layers: {detail}. Of few steps it skips none.",
                    "缓存跳过大部分层的步数：{detail}。步数较少时不跳过。"),
    "error": ("Not possible", "无法生成"),
    "no_prompt": ("The prompt is empty; describe the image.", "提示词为空，请写明要生成的内容。"),
    "no_number": ("A number is missing; fill in every field.", "有数字没有填写，请填写所有项。"),
    "no_image": ("The file cannot be read; choose an image of at most {most} megapixels, of {formats}.",
                 "无法读取文件，请选择不超过 {most} 百万像素的图片，格式为：{formats}。"),
    "lost_photo": ("The page no longer has your image; choose it again.", "页面没有你的图片了，请重新选择。"),
    "failed": ("The image could not be generated: {detail}.", "无法生成：{detail}。"),
    "out_of_memory": ("There is not enough memory; generate a smaller image.", "内存不足，请减小图的尺寸。"),
    "broken": ("The image could not be generated; the reason is on the terminal that runs this page.",
               "无法生成，原因见运行本页的终端。"),
}
# fmt: on
# The package's own names and sentences, which the English page shows as they are.
CHINESE = {
    "tome": "tome：相似的 token 取平均值，之后各自得到该组的结果",
    "prune": "prune：相似的 token 中只保留目标 token，之后各自得到它的结果",
    "tofu": "tofu：前一半 block 剪除，后一半合并并保持 token 的范数",
    "keys": "keys：保留所有 query；相似 token 的 key 和 value 合并，并按其所含 token 的个数计入",
    "pool": "pool：保留所有 query；每个步幅单元的 key 和 value 取平均值",
    "todo": "todo：key/value 下采样：保留所有 query，只用部分 token 的 key 和 value",
}


def translate(language: str, key: str, **values: object) -> str:
    """Return the words for a key, with the values in their places."""
    return WORDS[key][LANGUAGES.index(language)].format(**values)


def choose_language(accept_language: str) -> str:
    """Return the first language of an ``Accept-Language`` header that the page has, or English.

    Example:
        >>> choose_language("fr, zh-CN;q=0.8, en;q=0.5")
        'zh'
    """
    found = re.search(r"\b(en|zh)\b", accept_language[:500].lower())
    return found[0] if found else "en"

"""The words of the page in English and Chinese."""
# ruff: noqa: RUF001

from __future__ import annotations

import re

LANGUAGES = ("en", "zh")
# fmt: off
WORDS = {
    "header": ("# Token merging, before and after\nThe same image and noise, unmerged and with your settings.",
               "# Token 合并前后对比\n同一噪声、同一张图，对比不合并与所选设置的结果。"),
    "prompt": ("Prompt", "提示词"),
    "examples": ("Examples", "示例"),
    "class": ("Class", "类别"),
    "merging": ("Token merging", "Token 合并"),
    "merging_info": ("by ratio: similar tokens merge; a preset: fewer keys; none: a cache over steps alone",
                     "按合并率：合并相似的 token；预设：减少 key；不合并：只用跨步缓存"),
    "none": ("none", "不合并"),
    "own": ("by ratio", "按合并率"),
    "given": ("of --config", "--config 的设置"),
    "method": ("Method", "方法"),
    "method_info": ("tome merges tokens; keys and todo keep every query and use fewer keys",
                    "tome 合并 token；keys 与 todo 保留全部 query，只减少 key"),
    "ratio": ("Ratio", "合并率"),
    "ratio_info": ("fraction of the tokens that merge", "合并掉的 token 所占的比例"),
    "cache": ("Cache over steps", "跨步缓存"),
    "cache_info": ("fraction of the steps that skip most layers; 0: off", "跳过大部分层的步数所占的比例；0 表示关闭"),
    "start": ("Merging starts at", "合并开始于"),
    "start_info": ("0.3 leaves the first 30% of the steps unmerged", "0.3 表示前 30% 的步不合并"),
    "end": ("Merging ends at", "合并结束于"),
    "end_info": ("0.9 leaves the last 10% of the steps unmerged", "0.9 表示后 10% 的步不合并"),
    "options": ("Seed, size, steps, guidance, negative prompt", "种子、尺寸、步数、引导系数、负向提示词"),
    "seed": ("Seed", "种子"),
    "width": ("Width", "宽度"),
    "height": ("Height", "高度"),
    "steps": ("Steps", "步数"),
    "guidance": ("Guidance", "引导系数"),
    "negative_prompt": ("Negative prompt", "负向提示词"),
    "guide": ("Guide by the edges of an image (ControlNet)", "用一张图的边缘引导（ControlNet）"),
    "photo": ("Image of at most {mebibytes} MiB", "图片，不超过 {mebibytes} MiB"),
    "low": ("Canny low", "低阈值"),
    "high": ("Canny high", "高阈值"),
    "strength": ("Strength", "引导强度"),
    "generate": ("Generate", "生成"),
    "cancel": ("Cancel", "取消"),
    "first": ("Press “Generate”; on a CPU a small model takes a minute.", "点击“生成”；小模型约需一分钟。"),
    "known": ("This model knows these subjects and no others: {subjects}.", "这个模型只认识这些内容：{subjects}。"),
    "merged_follows": ("The unmerged image. The other one follows.", "这是不合并的图；另一张随后生成。"),
    "warm_up": ("Warming up, not timed", "预热中，不计时"),
    "unmerged_image": ("Generating the unmerged image", "正在生成不合并的图"),
    "merged_image": ("Generating with your settings", "正在按所选设置生成"),
    "calls": ("steps", "步"),
    "unmerged": ("unmerged", "不合并"),
    "merged": ("your settings", "所选设置"),
    "slider": ("Slider between both images", "在两张图之间滑动"),
    "speedup": ("speed-up", "加速比"),
    "identical": ("identical", "完全相同"),
    "seconds": ("seconds", "耗时"),
    "memory": ("peak memory while denoising", "去噪时的峰值内存"),
    "settings_note": ("{detail}.", "{detail}。"),
    "measured_note": ("Seconds are of the whole image, each measured once after a warm-up step.",
                      "耗时为生成整张图的时间，预热一步后各测一次。"),
    "reused_note": ("The unmerged image and its seconds are those of before.", "不合并的图及其耗时沿用上一次的结果。"),
    "edges": ("its edges", "提取的边缘"),
    "too_long": ("{detail}.", "提示词过长，超出部分被忽略（{detail}）。"),
    "negative_too_long": ("{detail}.", "负向提示词过长，超出部分被忽略（{detail}）。"),
    "unknown_subject": ("This model cannot generate it: {detail}.", "这个模型画不出提示词的内容：{detail}。"),
    "unusual_size": ("{detail}.", "此尺寸下图可能模糊或内容重复（{detail}）。"),
    "no_edges": ("With these thresholds the image has no edges; lower them.", "在这些阈值下没有边缘，请调低阈值。"),
    "error": ("Not possible", "无法生成"),
    "empty": ("A field is empty; fill in the prompt and every number.", "有项目为空，请填写提示词和所有数字。"),
    "no_image": ("The file cannot be read; choose an image of at most {most} megapixels, of {formats}.",
                 "无法读取文件，请选择不超过 {most} 百万像素的图片，格式为：{formats}。"),
    "lost_photo": ("The page no longer has your image; choose it again.", "页面没有你的图片了，请重新选择。"),
    "failed": ("The image could not be generated: {detail}.", "无法生成：{detail}。"),
    "out_of_memory": ("There is not enough memory; generate a smaller image.", "内存不足，请减小图的尺寸。"),
    "broken": ("It failed; the reason is on the terminal that runs this page.", "无法生成，原因见运行本页的终端。"),
}
# fmt: on


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

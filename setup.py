"""Packaging. Exact pins for a working environment are in requirements.txt; here are the bounds that must hold."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = (HERE / "ppdiffusers_tome" / "version.py").read_text().split('"')[1]
# Where the source can be seen, as https://github.com/OWNER/NAME; "" until there is such a place. Nothing is published
# without it: see .github/workflows/publish.yml.
REPOSITORY = ""

_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_ELSEWHERE = r"(?!https?:|mailto:)"
_PICTURE = re.compile(rf"!\[([^\]]*)\]\({_ELSEWHERE}([^)\s]+)\)")
_LINK = re.compile(rf"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\({_ELSEWHERE}([^)\s]+)\)")
_TAG = re.compile(rf"<(a|img)\b([^>]*?)\s(href|src)=\"{_ELSEWHERE}([^\"]+)\"([^>]*)>")


def for_an_index(page: str, repository: str) -> str:
    """A Markdown page of this folder for a package index, where nothing stands beside it.

    Its links and pictures lead to the repository, at the tag of this version. Where there is none, links are left as
    their text and pictures are left out.
    """

    def address(target: str, view: str) -> str:
        return f"{repository}{target}" if target.startswith("#") else f"{repository}/{view}/v{VERSION}/{target}"

    def tag(found: re.Match[str]) -> str:
        name, before, attribute, target, after = found.groups()
        if repository:
            return f'<{name}{before} {attribute}="{address(target, "raw" if name == "img" else "blob")}"{after}>'
        return "" if name == "img" else f"<{name}{before}{after}>"

    pieces = _CODE.split(page)
    for number in range(0, len(pieces), 2):
        text = _PICTURE.sub(lambda found: repository and f"![{found[1]}]({address(found[2], 'raw')})", pieces[number])
        text = _LINK.sub(lambda found: f"[{found[1]}]({address(found[2], 'blob')})" if repository else found[1], text)
        pieces[number] = _TAG.sub(tag, text)
    return "".join(pieces)


setup(
    name="ppdiffusers-tome",
    version=VERSION,
    description="Token Merging for diffusion models on PaddlePaddle: faster, less memory, nearly the same picture",
    long_description=for_an_index((HERE / "README.md").read_text(encoding="utf-8"), REPOSITORY),
    long_description_content_type="text/markdown",
    author="The ppdiffusers_tome authors",
    url=REPOSITORY or None,
    project_urls={
        "Changelog": f"{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md",
        "Documentation": f"{REPOSITORY}/tree/v{VERSION}/docs",
        "Issues": f"{REPOSITORY}/issues",
    } if REPOSITORY else {},
    license_expression="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    keywords=[
        "token merging", "ToMe", "tomesd", "diffusion models", "Stable Diffusion", "PaddlePaddle", "ppdiffusers",
        "PaddleMIX", "inference", "ControlNet",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Natural Language :: Chinese (Simplified)",
        "Natural Language :: English",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Multimedia :: Graphics",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Processing",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["ppdiffusers_tome", "ppdiffusers_tome.*"]),
    package_data={
        "ppdiffusers_tome": ["py.typed"],
        "ppdiffusers_tome.settings.presets": ["*.json"],
        "ppdiffusers_tome.tools.bench.gpu": ["*.json"],
        "ppdiffusers_tome.tools.evaluate": ["*.jsonl"],
        "ppdiffusers_tome.tools.play": ["*.css"],
        # The weights too: what comes with the package can be tried and tested where no hub can be reached, and pip's
        # checksum covers it. They are far below the 100 MB that package indexes take; .ci/wheel.py looks.
        "ppdiffusers_tome.tools.demo_model": ["model/**/*", "controlnet/**/*", "dit/**/*"],
    },
    install_requires=[
        "ppdiffusers>=0.24.1",  # no upper bound: the newest are installed from source
        "paddlenlp>=2.7.2,<=2.8.1",  # 2.7.2 is the one that ppdiffusers 0.24.1 insists on
        "numpy>=1.24,<2",
        "scikit-image>=0.22,<0.25",
        "flip-evaluator>=1.6,<2",
        "pillow>=10.1",  # ImageFont.load_default of any size
        "matplotlib>=3.8,<4",
        "rich>=13.8,<16",
        "filelock>=3.32",  # earlier ones cannot be told to do without where a file system has no locks
        "packaging",
        "tqdm",
        # Bounds that ppdiffusers and paddlenlp need and do not set: newer ones fail on import.
        "aistudio-sdk<0.3",
        "datasets<3.2",
        "huggingface-hub>=0.22,<0.26",
        "opencv-python<4.11",
        "pip",
        "pyarrow<19",
        "safetensors>=0.5,<0.7",
        "setuptools<70",
    ],
    extras_require={
        "cpu": ["paddlepaddle>=2.6.2,<=3.3.1"],
        "gpu": ["paddlepaddle-gpu>=2.6.2,<=3.3.1"],
        "play": ["gradio>=5.14,<5.15"],  # later ones need a newer huggingface-hub than the one above
        "onnx": ["paddle2onnx>=1.3,<2", "onnxruntime>=1.17,<1.20"],  # with Paddle 2.6; for Paddle 3 nothing converts
    },
    entry_points={"console_scripts": ["ppdiffusers-tome=ppdiffusers_tome.__main__:program"]},
)

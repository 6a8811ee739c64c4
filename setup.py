"""Packaging. Exact pins for a working environment are in requirements.txt; here are the bounds that must hold."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = (HERE / "ppdiffusers_tome" / "version.py").read_text().split('"')[1]
# Where the source can be seen, as https://github.com/OWNER/NAME; "" until there is such a place. Nothing is published
# without it: see .github/workflows/publish.yml.
REPOSITORY = ""

# What the tools import.
CLI = [
    "matplotlib>=3.8,<4",
    "packaging",
    "pillow>=10.1",  # ImageFont.load_default of any size
    "psutil>=5.9",
    "scikit-image>=0.22,<0.25",
    "tqdm>=4.60",  # with delay=
]
# Bounds that ppdiffusers and paddlenlp need and do not set: newer ones fail on import.
FRESH_ENVIRONMENT = [
    "aistudio-sdk<0.3",
    "datasets<3.2",
    "huggingface-hub>=0.22,<0.26",
    "numpy<2",
    "opencv-python<4.11",
    "paddlenlp<=2.8.1",
    "pip",
    "pyarrow<19",
    "safetensors>=0.5,<0.7",
    "setuptools<70",
]


def readme() -> str:
    """Return README.md with links that work on a package index, once there is a repository to lead to."""
    page = (HERE / "README.md").read_text(encoding="utf-8")
    if REPOSITORY:
        page = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\g<1>{REPOSITORY}/raw/v{VERSION}/", page)
        page = re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{REPOSITORY}/blob/v{VERSION}/", page)
    return page


setup(
    name="ppdiffusers-tome",
    version=VERSION,
    description="Token Merging for diffusion models on PaddlePaddle: faster or lighter on memory, without training",
    long_description=readme(),
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
    package_data={"ppdiffusers_tome": ["py.typed"]},
    # What merging imports, without upper bounds: an environment that runs ppdiffusers keeps its versions.
    install_requires=["ppdiffusers>=0.24.1", "paddlenlp>=2.7.2", "numpy>=1.24"],
    extras_require={
        "cli": CLI,
        "cpu": [
            "paddlepaddle>=2.6.2,<=3.3.1", "openvino>=2026.4,<2027", "xxhash>=3",
            *FRESH_ENVIRONMENT, *CLI,
        ],
        "gpu": ["paddlepaddle-gpu>=2.6.2,<=3.3.1", *FRESH_ENVIRONMENT, *CLI],
    },
    entry_points={"console_scripts": ["ppdiffusers-tome=ppdiffusers_tome.__main__:program"]},
)

r"""Formulas of the losses, in the part of LaTeX that matplotlib can draw.

x is an embedding, \hat{x} the same at length 1, s a cosine similarity, d a distance, p a proxy or
class weight, y the class of x, and [z]_+ the larger of z and 0.
"""

from __future__ import annotations

_CONTRASTIVE = r"\mathrm{mean}\,[d_{ap} - m_+]_+ + \mathrm{mean}\,[m_- - d_{an}]_+"
_TRIPLET = r"\mathrm{mean}\,[d_{ap} - d_{an} + m]_+"
_MARGIN = r"\mathrm{mean}\,[m + d_{ap} - \beta]_+ + [m - d_{an} + \beta]_+"
_MS = (
    r"\frac{1}{\alpha}\log\left(1 + \sum_p e^{-\alpha(s_p - \lambda)}\right)"
    r" + \frac{1}{\beta}\log\left(1 + \sum_n e^{\beta(s_n - \lambda)}\right)"
)

_XBM = r"L = \ell(\mathrm{batch}, \mathrm{batch}) + w\,\ell(\mathrm{batch}, \mathrm{memory})"


def _softmax(own: str, other: str) -> str:
    return rf"-\log\frac{{e^{{{own}}}}}{{e^{{{own}}} + \sum_{{c \neq y}} e^{{{other}}}}}"


# Name of a method, or what the names of related methods begin with -> formulas.
_FORMULAS = {
    "contrastive": (rf"L = {_CONTRASTIVE}",),
    "triplet": (rf"L = {_TRIPLET}",),
    "triplet-semihard": (rf"L = {_TRIPLET}", r"d_{ap} < d_{an} < d_{ap} + m"),
    "triplet-ball": (rf"L = {_TRIPLET}", r"x \leftarrow x / \max(1, |x|)"),
    "ntxent": (r"L = -\log\frac{e^{s_{ap}/\tau}}{e^{s_{ap}/\tau} + \sum_n e^{s_{an}/\tau}}",),
    "proxynca": (
        "L = " + _softmax(r"-\sigma|\hat{x} - \hat{p}_y|^2", r"-\sigma|\hat{x} - \hat{p}_c|^2"),
    ),
    "proxynca++": (
        "L = " + _softmax(r"-|\hat{x} - \hat{p}_y|^2/T", r"-|\hat{x} - \hat{p}_c|^2/T"),
    ),
    "margin": (rf"L = {_MARGIN}",),
    "margin-class": ("L = " + _MARGIN.replace("beta", "beta_y"),),
    "margin-dw": (
        "L = " + _MARGIN.replace("beta", "beta_y"),
        r"P(n) \propto d_{an}^{2-D}(1 - d_{an}^2/4)^{(3-D)/2}",
    ),
    "nsoftmax": ("L = " + _softmax(r"s(x, p_y)/\tau", r"s(x, p_c)/\tau"),),
    "softmax": ("L = " + _softmax(r"p_y \cdot \hat{x} + b_y", r"p_c \cdot \hat{x} + b_c"),),
    "cosface": ("L = " + _softmax(r"\sigma(s(x, p_y) - m)", r"\sigma s(x, p_c)"),),
    "arcface": (
        "L = " + _softmax(r"\sigma\cos(\theta_y + m)", r"\sigma\cos\theta_c"),
        r"\cos\theta_c = s(x, p_c)",
    ),
    "fastap": (r"L = 1 - \frac{1}{N^+}\sum_{j} \frac{H_j^+ h_j^+}{H_j}",),
    "snr": (
        rf"L = {_CONTRASTIVE} + \lambda\,\left|\sum_k \hat{{x}}_k\right|",
        r"d_{ij} = \mathrm{var}(x_i - x_j) / \mathrm{var}(x_i)",
    ),
    "ms": (rf"L = {_MS}",),
    "ms-miner": (rf"L = {_MS}", r"s_n > \min s_p - \epsilon, \quad s_p < \max s_n + \epsilon"),
    "ms-ball": (rf"L = {_MS}", r"x \leftarrow x / \max(1, |x|)"),
    "softtriple": (
        "L = " + _softmax(r"\lambda(S_y - m)", r"\lambda S_c"),
        r"S_c = \sum_k \frac{e^{\gamma s(x, p_{ck})}}{\sum_l e^{\gamma s(x, p_{cl})}} s(x, p_{ck})",
    ),
    "proxyanchor": (
        r"L = \frac{1}{|P^+|}\sum_{p \in P^+}\log(1 + \sum_{x \in X_p^+} e^{-\alpha(s(x, p) - m)})"
        r" + \frac{1}{|P|}\sum_{p \in P}\log(1 + \sum_{x \in X_p^-} e^{\alpha(s(x, p) + m)})",
    ),
    "proxygml": (
        r"L = \mathrm{mean}_i\,\mathrm{CE}(Z_i, y_i)"
        r" + \lambda\,\mathrm{mean}_j\,\mathrm{CE}(\hat{p}_j (\hat{P}^T Y), y_j)",
        r"Z_{ic} = \sum s(x_i, p), \quad p\ \mathrm{of\ class}\ c,"
        r"\ \mathrm{among\ the}\ r\,C N\ \mathrm{nearest\ of}\ x_i",
    ),
    "hpl": (r"L = \sum_l w_l\, \ell(X, y^{(l)}, P_l), \quad P_{l+1} = \mathrm{kmeans}(P_l)",),
    "ccp": (
        r"L = (1 - b)\,\ell(n(X), n(P)) + b\,\ell(n(X), n(X))"
        r" + \frac{\lambda}{2}|\theta - \theta_{best}|^2",
        r"n(v) = v / \max(1, |v|)",
    ),
    "c1": (r"L = \frac{1}{n}\sum_i \left(\sum_{p}[1 - s_{ip}]_+ + \sum_{n}[s_{in} - m]_+\right)",),
    "c2": (rf"L = {_CONTRASTIVE}", r"x \leftarrow x / \max(1, |x|)"),
    "c1-xbm": (_XBM,),
    "c2-xbm": (_XBM,),
    "drml": (
        r"L = \sum_k \ell_k(v_k) + w_{repre}\,\ell(z)"
        r" + w_{recon}\,\mathrm{mean}\,|f_k - \mathrm{Dec}_k(v_k)|^2",
        r"z_j = U [v_j ; \sum_i S_{ij} v_i], \quad S_{ij} \propto [w \cdot (a_i - e_j) + \beta]_+",
    ),
    "relation": (r"L = \ell(z), \quad z_j = U [v_j ; \sum_i S_{ij} v_i]",),
}


def formulas_of(method: str) -> tuple[str, ...]:
    """The formulas of a method; empty if we have none."""
    name = method.partition("+space=")[0]
    return _FORMULAS.get(name) or _FORMULAS.get(name.partition("-")[0], ())

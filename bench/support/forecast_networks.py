"""Convolutional networks of a size that two cores can train, shaped like the ones that [ASGD] measures."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
SIDE, CLASSES = 32, 100


def loss_of(network: str, batch: int) -> Any:
    """The loss on a random batch that stays the same."""
    images = tf.constant(0.5, shape=(batch, SIDE, SIDE, 3))
    labels = tf.zeros([batch], tf.int32)
    logits = NETWORKS[network](images)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def conv(x: Any, name: str, channels: int, size: int = 3, stride: int = 1) -> Any:
    """Convolution, bias, ReLU."""
    kernel = v1.get_variable(f"{name}/w", [size, size, int(x.shape[-1]), channels], use_resource=False)
    bias = v1.get_variable(f"{name}/b", [channels], initializer=v1.zeros_initializer(), use_resource=False)
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, stride, "SAME"), bias))


def dense(x: Any, name: str, units: int) -> Any:
    """Matrix product and bias."""
    weights = v1.get_variable(f"{name}/w", [int(x.shape[-1]), units], use_resource=False)
    bias = v1.get_variable(f"{name}/b", [units], initializer=v1.zeros_initializer(), use_resource=False)
    return tf.nn.bias_add(tf.matmul(x, weights), bias)


def flat(x: Any) -> Any:
    """One row per sample."""
    return tf.reshape(x, [int(x.shape[0]), -1])


def alexnet(x: Any) -> Any:
    """Few convolutions; most parameters in two large layers at the end."""
    x = tf.nn.max_pool2d(conv(x, "c1", 64, 5), 2, 2, "SAME")
    x = tf.nn.max_pool2d(conv(x, "c2", 96), 2, 2, "SAME")
    x = conv(conv(x, "c3", 128), "c4", 128)
    x = flat(tf.nn.max_pool2d(conv(x, "c5", 64), 2, 2, "SAME"))
    x = tf.nn.relu(dense(x, "f6", 512))
    return dense(tf.nn.relu(dense(x, "f7", 512)), "f8", CLASSES)


def vgg(x: Any) -> Any:
    """Pairs of small convolutions, then large layers."""
    for block, channels in enumerate((32, 64, 128)):
        x = conv(conv(x, f"c{block}a", channels), f"c{block}b", channels)
        x = tf.nn.max_pool2d(x, 2, 2, "SAME")
    return dense(tf.nn.relu(dense(flat(x), "f1", 512)), "f2", CLASSES)


def resnet(x: Any) -> Any:
    """Residual blocks, no large layer."""
    x = conv(x, "c0", 32)
    for block, channels in enumerate((32, 64, 128, 192)):
        shortcut = conv(x, f"s{block}", channels, 1, 1 + (block > 0))
        x = shortcut + conv(conv(x, f"r{block}a", channels, 3, 1 + (block > 0)), f"r{block}b", channels)
    return dense(tf.reduce_mean(x, [1, 2]), "f", CLASSES)


def googlenet(x: Any) -> Any:
    """Blocks of four parallel branches, no large layer."""
    x = tf.nn.max_pool2d(conv(x, "c0", 64), 2, 2, "SAME")
    for block, width in enumerate((32, 48, 64)):
        pooled = tf.nn.max_pool2d(x, 3, 1, "SAME")
        branches = [
            conv(x, f"i{block}a", width, 1),
            conv(conv(x, f"i{block}b", width, 1), f"i{block}c", 2 * width),
            conv(conv(x, f"i{block}d", width // 2, 1), f"i{block}e", width, 5),
            conv(pooled, f"i{block}f", width, 1),
        ]
        x = tf.nn.max_pool2d(tf.concat(branches, -1), 2, 2, "SAME")
    return dense(tf.reduce_mean(x, [1, 2]), "f", CLASSES)


NETWORKS = {"alexnet": alexnet, "googlenet": googlenet, "resnet": resnet, "vgg": vgg}

#!/usr/bin/env python3
"""model_perf's step in TensorFlow: network C, forward, loss, backward, Adam. bf16 by mixed precision."""

import os

import common

options = common.arguments("tensorflow_perf")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
try:
    import tensorflow as tf
except ImportError:
    common.absent("tensorflow_perf", "tensorflow")

tf.config.threading.set_intra_op_parallelism_threads(options.threads)
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.random.set_seed(1)


def network_c():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.InputLayer((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10, dtype="float32"),
        ]
    )


def make_step(dtype):
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16" if dtype == "bf16" else "float32")
    model = network_c()
    adam = tf.keras.optimizers.Adam(1e-3, epsilon=1e-7)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = tf.random.uniform((options.batch, 28, 28, 1))
    labels = tf.range(options.batch) % 10

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        adam.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return lambda: step().numpy()


print(f"TensorFlow {tf.__version__}")
common.measure(options, make_step)

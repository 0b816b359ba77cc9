#!/usr/bin/env python3
"""model_perf's step in TensorFlow, as a graph. bf16 by mixed precision."""

import os

import common

options = common.arguments("tensorflow_perf", list(common.RECIPES))
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
try:
    import tensorflow as tf
except ImportError as error:
    if getattr(error, "name", None) == "tensorflow":
        common.absent("tensorflow_perf", "tensorflow")
    raise SystemExit(f"tensorflow_perf: {error}")

tf.config.threading.set_intra_op_parallelism_threads(options.threads)
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.random.set_seed(1)

layers = tf.keras.layers
L2 = tf.keras.regularizers.L2(options.recipe.kernel_l2) if options.recipe.kernel_l2 else None


def conv(x, filters, size, stride):
    if size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    return layers.Conv2D(filters, size, stride, use_bias=False, kernel_regularizer=L2)(x)


def norm(x, relu, gamma="ones"):
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=gamma)(x)
    return layers.ReLU()(x) if relu else x


def block(x, bottleneck, width, stride, projects):
    """A residual block of 1 x 1, 3 x 3 and 1 x 1, or of 3 x 3 and 3 x 3: models/networks/network.h."""
    filters = 4 * width if bottleneck else width
    first, last = ((1, 1), (1, 1)) if bottleneck else ((3, stride), (3, 1))
    main = norm(conv(x, width, *first), relu=True)
    if bottleneck:
        main = norm(conv(main, width, 3, stride), relu=True)
    main = norm(conv(main, filters, *last), relu=False, gamma="zeros")
    shortcut = norm(conv(x, filters, 1, stride), relu=False) if projects else x
    return layers.ReLU()(layers.Add()([main, shortcut]))


def resnet(x, classes, blocks, bottleneck, small_images):
    x = norm(conv(x, 64, 3, 1) if small_images else conv(x, 64, 7, 2), relu=True)
    if not small_images:
        x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, count in enumerate(blocks):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            x = block(x, bottleneck, 64 << stage, stride, number == 0 and (stage > 0 or bottleneck))
    x = layers.GlobalAveragePooling2D()(x)
    return layers.Dense(classes, dtype="float32", kernel_regularizer=L2)(x)


def stack(name, classes):
    def conv_relu(filters):
        return layers.Conv2D(filters, 3, activation="relu")

    def dense_relu(units):
        return layers.Dense(units, activation="relu")

    body = {
        "A": lambda: [conv_relu(32), layers.MaxPooling2D(2), conv_relu(64), layers.MaxPooling2D(2), layers.Flatten(), dense_relu(64)],
        "B": lambda: [conv_relu(32), layers.MaxPooling2D(2), layers.Flatten(), dense_relu(64)],
        "C": lambda: [
            conv_relu(32),
            conv_relu(64),
            layers.MaxPooling2D(2),
            layers.Dropout(0.25),
            layers.Flatten(),
            dense_relu(128),
            layers.Dropout(0.5),
        ],
        "D": lambda: [conv_relu(32), layers.Flatten(), dense_relu(128)],
        "mlp": lambda: [layers.Flatten(), dense_relu(128), layers.Dropout(0.2)],
    }
    return [*body[name](), layers.Dense(classes, dtype="float32")]


def network(name, classes, image, channels):
    x = inputs = layers.Input((image, image, channels))
    if name == "resnet18":
        x = resnet(x, classes, (2, 2, 2, 2), bottleneck=False, small_images=True)
    elif name == "resnet50":
        x = resnet(x, classes, (3, 4, 6, 3), bottleneck=True, small_images=False)
    else:
        for layer in stack(name, classes):
            x = layer(x)
    return tf.keras.Model(inputs, x)


def make_steps(dtype):
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16" if dtype == "bf16" else "float32")
    recipe = options.recipe
    model = network(options.model, options.classes, options.image, recipe.channels)
    if recipe.optimizer == "adam":
        optimizer = tf.keras.optimizers.Adam(1e-3, epsilon=1e-7)
    else:
        optimizer = tf.keras.optimizers.SGD(1e-2, momentum=float(recipe.momentum))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = tf.random.uniform((options.batch, options.image, options.image, recipe.channels))
    labels = tf.range(options.batch) % options.classes

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
            if model.losses:
                loss += tf.add_n(model.losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    parameters = sum(int(tf.size(variable)) for variable in model.trainable_variables)
    return parameters, {"graph": lambda: step().numpy()}


common.run(options, f"TensorFlow {tf.__version__}", make_steps)

"""Sixteen jobs of four apps for eight emulated machines: what they compute, send and keep in memory."""

from __future__ import annotations

from typing import Any

BANDWIDTH = 1e6
MEMORY = 4_000_000

APPS = "hpcbal.paramserver.apps:"


def nmf(name, items, users, ratings, sps, epochs, batch):
    return dict(
        name=name,
        app=APPS + "NMF",
        args=dict(rank=16, access="dense"),
        data=dict(
            dataset=APPS + "generated_ratings",
            args=dict(num_users=users, num_items=items, mean_ratings=ratings),
        ),
        mini_batch=batch,
        seconds_per_sample=sps,
        stop=dict(max_epochs=epochs),
        objective=dict(every=epochs),
    )


def lasso(name, obs, features, nonzero, sps, epochs, batch):
    return dict(
        name=name,
        app=APPS + "Lasso",
        args=dict(l1=1e-4),
        data=dict(
            dataset=APPS + "generated_regression",
            args=dict(num_features=features, num_observations=obs, num_nonzero=nonzero),
        ),
        mini_batch=batch,
        seconds_per_sample=sps,
        stop=dict(max_epochs=epochs),
        objective=dict(every=epochs),
    )


def mlr(name, classes, samples, nonzero, features, sps, epochs, batch):
    return dict(
        name=name,
        app=APPS + "MLR",
        args=dict(learning_rate=1.0),
        data=dict(
            dataset=APPS + "generated_classes",
            args=dict(num_samples=samples, num_features=features, num_classes=classes, num_nonzero=nonzero),
        ),
        mini_batch=batch,
        seconds_per_sample=sps,
        stop=dict(max_epochs=epochs),
        objective=dict(every=epochs),
    )


def lda(name, topics, docs, words, mean, sps, epochs, batch):
    return dict(
        name=name,
        app=APPS + "LDA",
        args=dict(num_topics=topics),
        data=dict(
            dataset=APPS + "generated_documents",
            args=dict(num_documents=docs, num_words=words, mean_words=mean),
        ),
        mini_batch=batch,
        seconds_per_sample=sps,
        stop=dict(max_epochs=epochs),
        objective=dict(every=epochs),
    )

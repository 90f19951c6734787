//! In place of the module `xdp`, where its feature is not enabled: nothing of it can be made.

use std::{convert::Infallible, iter, net::UdpSocket, sync::Arc};

use crate::{
    Error,
    metrics::XdpStatus,
    udp::{ConnectionIds, Front},
};

#[derive(Debug, Clone)]
pub(crate) enum Xdp {}

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) guard: Guard,
}

#[derive(Debug)]
pub(crate) struct Guard(pub(crate) Arc<Attachment>);

#[derive(Debug)]
pub(crate) enum Attachment {}

impl Opened {
    pub(crate) fn at(xdp: &Xdp, _: &[Vec<UdpSocket>]) -> Result<Self, Error> {
        match *xdp {}
    }

    pub(crate) fn into_fronts(self) -> (Guard, impl Iterator<Item = Box<dyn Front + Send>>) {
        (self.guard, iter::empty())
    }
}

impl Attachment {
    pub(crate) async fn care(&self, _: &ConnectionIds) -> Infallible {
        match *self {}
    }

    pub(crate) fn stop(&self) {
        match *self {}
    }

    pub(crate) fn status(&self) -> XdpStatus {
        match *self {}
    }
}

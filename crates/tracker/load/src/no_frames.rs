//! A build without AF_XDP, in which [`Config::validate`] refuses an interface: there are no frames.

use std::{io, os::fd::BorrowedFd};

use crate::{Config, Error, clock::Clock};

#[derive(Debug)]
pub(crate) enum Frames {}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Route {}

impl Frames {
    pub(crate) const fn open(_: &Config) -> Result<Option<Self>, Error> {
        Ok(None)
    }

    pub(crate) fn mode(&self) -> &'static str {
        match *self {}
    }

    pub(crate) fn queues(&self) -> std::iter::Empty<BorrowedFd<'_>> {
        match *self {}
    }

    pub(crate) fn expect(&mut self, _: BorrowedFd<'_>, _: usize) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn check(&self, _: usize) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn next(&mut self, _: usize) -> Option<usize> {
        match *self {}
    }

    pub(crate) fn read(&mut self, _: &Clock, _: impl FnOnce(Route, &[u8], u64)) -> bool {
        match *self {}
    }

    pub(crate) fn send(&mut self, _: &Route, _: &[u8]) -> bool {
        match *self {}
    }

    pub(crate) fn flush(&mut self) {
        match *self {}
    }
}

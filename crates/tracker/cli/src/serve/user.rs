//! The user of the process: root at the start, for low ports and files of root, then a user without
//! privileges.

use std::str::FromStr;

use nix::{
    errno::Errno,
    sys::prctl,
    unistd::{self, Gid, Group, Uid, getgroups, getresgid, getresuid, setgroups, setresgid, setresuid},
};

/// The user and group of the tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    uid: Uid,
    gid: Gid,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot become the user: only root can; start as root, or leave --user out")]
    NotRoot,
    #[error(
        "cannot give up privileges, {step}: {source}; leave --user out where the service manager does this"
    )]
    Refused { step: &'static str, source: Errno },
    #[error("privileges could be taken back after they were given up; do not trust this system with --user")]
    NotGone,
}

impl User {
    /// Whether this process has root's privileges.
    pub(crate) fn is_root() -> bool {
        Uid::effective().is_root()
    }

    /// Becomes this user in all threads, without a way back. No thread may have been started, since each
    /// decides for itself about gaining privileges by executing a program.
    pub(crate) fn become_for_good(self) -> Result<(), Error> {
        let Self { uid, gid } = self;
        if !Self::is_root() {
            return Err(Error::NotRoot);
        }
        let refused = |step| move |source| Error::Refused { step, source };
        prctl::set_no_new_privs().map_err(refused("those of programs to execute"))?;
        // In this order: only root can change groups.
        setgroups(&[]).map_err(refused("groups"))?;
        setresgid(gid, gid, gid).map_err(refused("group"))?;
        setresuid(uid, uid, uid).map_err(refused("user"))?;

        let (users, groups) = (
            getresuid().map_err(refused("asking for users"))?,
            getresgid().map_err(refused("asking for groups"))?,
        );
        let is_only = [users.real, users.effective, users.saved] == [uid; 3]
            && [groups.real, groups.effective, groups.saved] == [gid; 3]
            && getgroups().map_err(refused("asking for more groups"))?.is_empty();
        let (root, wheel) = (Uid::from_raw(0), Gid::from_raw(0));
        let comes_back = setresuid(root, root, root).is_ok()
            || setresgid(wheel, wheel, wheel).is_ok()
            || setgroups(&[wheel]).is_ok();
        if is_only && !comes_back { Ok(()) } else { Err(Error::NotGone) }
    }
}

impl FromStr for User {
    type Err = String;

    /// Parses `NAME` or `NAME:GROUP`. The default group is the user's own.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, group) = text.split_once(':').map_or((text, None), |(name, group)| (name, Some(group)));
        let user = unistd::User::from_name(name)
            .map_err(|error| format!("cannot look the user up: {error}"))?
            .ok_or("there is no such user on this machine; create one, as by `useradd --system`")?;
        let gid = match group {
            None => user.gid,
            Some(group) => {
                Group::from_name(group)
                    .map_err(|error| format!("cannot look the group up: {error}"))?
                    .ok_or("there is no such group on this machine")?
                    .gid
            }
        };
        if user.uid.is_root() || gid.as_raw() == 0 {
            return Err("root's user or group is none to give privileges up for; name others".into());
        }
        Ok(Self { uid: user.uid, gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_those_of_this_machine_but_root() {
        let nobody: User = "nobody".parse().expect("everywhere");
        assert_ne!(nobody.uid.as_raw(), 0);
        let daemon = Group::from_name("daemon").expect("looked up").expect("everywhere").gid;
        assert_eq!("nobody:daemon".parse(), Ok(User { gid: daemon, ..nobody }));
        for (text, problem) in [
            ("no body", "no such user"),
            ("nobody:", "no such group"),
            ("root", "root's user or group"),
            ("nobody:root", "root's user or group"),
            ("root:daemon", "root's user or group"),
        ] {
            let error = text.parse::<User>().unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}

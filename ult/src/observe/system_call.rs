//! The system call that a thread of this process is blocked in, for reports of stalls.

use std::borrow::Cow;
use std::fs;

/// The name of the system call that the thread is blocked in, or its number. `None`: it runs, or
/// has ended, or this system does not tell.
pub(crate) fn system_call(thread: i32) -> Option<Cow<'static, str>> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).ok()?;
    Some(name(number(&text)?))
}

/// The number in a line of `/proc/PID/syscall`, which is `running` or begins with a negative number
/// for a thread that is in none.
fn number(line: &str) -> Option<libc::c_long> {
    line.split(' ').next()?.trim().parse().ok().filter(|number| *number >= 0)
}

/// The names of calls that may block.
fn name(number: libc::c_long) -> Cow<'static, str> {
    macro_rules! names {
        ($($(#[$only:meta])* $call:ident $name:literal,)*) => {
            match number {
                $($(#[$only])* libc::$call => Cow::Borrowed($name),)*
                other => Cow::Owned(format!("number {other}")),
            }
        };
    }
    names! {
        SYS_read "read",
        SYS_pread64 "pread64",
        SYS_readv "readv",
        SYS_preadv "preadv",
        SYS_write "write",
        SYS_pwrite64 "pwrite64",
        SYS_writev "writev",
        SYS_pwritev "pwritev",
        SYS_fsync "fsync",
        SYS_fdatasync "fdatasync",
        SYS_sync "sync",
        SYS_openat "openat",
        SYS_close "close",
        SYS_statx "statx",
        SYS_newfstatat "newfstatat",
        SYS_getdents64 "getdents64",
        SYS_unlinkat "unlinkat",
        SYS_ftruncate "ftruncate",
        SYS_fallocate "fallocate",
        SYS_copy_file_range "copy_file_range",
        SYS_sendfile "sendfile",
        SYS_splice "splice",
        SYS_flock "flock",
        SYS_fcntl "fcntl",
        SYS_ioctl "ioctl",
        SYS_futex "futex",
        SYS_nanosleep "nanosleep",
        SYS_clock_nanosleep "clock_nanosleep",
        SYS_ppoll "ppoll",
        SYS_pselect6 "pselect6",
        SYS_epoll_pwait "epoll_pwait",
        #[cfg(target_arch = "x86_64")]
        SYS_poll "poll",
        #[cfg(target_arch = "x86_64")]
        SYS_select "select",
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_wait "epoll_wait",
        #[cfg(target_arch = "x86_64")]
        SYS_unlink "unlink",
        #[cfg(target_arch = "x86_64")]
        SYS_rename "rename",
        SYS_connect "connect",
        SYS_accept "accept",
        SYS_accept4 "accept4",
        SYS_recvfrom "recvfrom",
        SYS_recvmsg "recvmsg",
        SYS_recvmmsg "recvmmsg",
        SYS_sendto "sendto",
        SYS_sendmsg "sendmsg",
        SYS_sendmmsg "sendmmsg",
        SYS_wait4 "wait4",
        SYS_waitid "waitid",
        SYS_msync "msync",
        SYS_io_uring_enter "io_uring_enter",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_kernel_is_read() {
        assert_eq!(number("running\n"), None);
        assert_eq!(number("-1 0x7ffc 0x7f12\n"), None);
        assert_eq!(number(""), None);
        let line = format!("{} 0x0 0x0 0x7f 0x0 0x0 0x0 0x7ffc 0x7f12\n", libc::SYS_fsync);
        assert_eq!(number(&line).map(name).as_deref(), Some("fsync"));
        assert_eq!(name(99_999), "number 99999");
    }
}

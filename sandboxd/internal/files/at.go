package files

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// The calls below work on a name in an open folder, and never follow a link. os.Root has them from Go 1.25 on.

func symlinkAt(target string, folder *os.File, name string) error {
	targetPointer, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	namePointer, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return onFolder(folder, func(descriptor uintptr) syscall.Errno {
		_, _, number := syscall.Syscall(syscall.SYS_SYMLINKAT,
			uintptr(unsafe.Pointer(targetPointer)), descriptor, uintptr(unsafe.Pointer(namePointer)))
		return number
	})
}

func linkAt(source *os.File, old string, folder *os.File, name string) error {
	oldPointer, err := syscall.BytePtrFromString(old)
	if err != nil {
		return err
	}
	namePointer, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return onFolder(source, func(from uintptr) syscall.Errno {
		var number syscall.Errno
		_ = onFolder(folder, func(to uintptr) syscall.Errno {
			_, _, number = syscall.Syscall6(syscall.SYS_LINKAT,
				from, uintptr(unsafe.Pointer(oldPointer)), to, uintptr(unsafe.Pointer(namePointer)), 0, 0)
			return 0
		})
		return number
	})
}

func readlinkAt(folder *os.File, name string) (string, error) {
	namePointer, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	buffer := make([]byte, syscall.PathMax)
	length := 0
	err = onFolder(folder, func(descriptor uintptr) syscall.Errno {
		count, _, number := syscall.Syscall6(syscall.SYS_READLINKAT, descriptor, uintptr(unsafe.Pointer(namePointer)),
			uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0, 0)
		length = int(count)
		return number
	})
	if err != nil {
		return "", err
	}
	return string(buffer[:length]), nil
}

// lchownAt gives a name to a user, a link itself if it is one.
func lchownAt(folder *os.File, name string, owner Owner) error {
	return onFolder(folder, func(descriptor uintptr) syscall.Errno {
		return errno(syscall.Fchownat(int(descriptor), name, owner.UID, owner.GID, atSymlinkNofollow))
	})
}

const (
	atSymlinkNofollow = 0x100
	utimeOmit         = 1<<30 - 2
)

// setModified sets an open file's time of modification.
func setModified(file *os.File, modified time.Time) error {
	times := [2]syscall.Timespec{{Nsec: utimeOmit}, syscall.NsecToTimespec(modified.UnixNano())}
	return onFolder(file, func(descriptor uintptr) syscall.Errno {
		_, _, number := syscall.Syscall6(syscall.SYS_UTIMENSAT,
			descriptor, 0, uintptr(unsafe.Pointer(&times[0])), 0, 0, 0)
		return number
	})
}

func onFolder(file *os.File, do func(uintptr) syscall.Errno) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var number syscall.Errno
	if err := raw.Control(func(descriptor uintptr) { number = do(descriptor) }); err != nil {
		return err
	}
	if number != 0 {
		return number
	}
	return nil
}

func errno(err error) syscall.Errno {
	if number, ok := err.(syscall.Errno); ok {
		return number
	}
	if err != nil {
		return syscall.EIO
	}
	return 0
}

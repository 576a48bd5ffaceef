package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

const (
	blockBytes = 512 // of st_blocks, whatever the file system's own are
	// mostEntries is how many files and folders the volumes may hold. A walk over as many takes half a minute, and a disk
	// has a limited number of files, as it has of bytes.
	mostEntries = 1_000_000
	// mostDepth bounds how many folders are open at once, two descriptors each.
	mostDepth = 100
	batch     = 1000

	// slice is how long a walk works before it rests for restSlices times as long: a quarter of the time is its share.
	slice      = 50 * time.Millisecond
	restSlices = 3
)

var errTooDeep = fmt.Errorf("folders lie deeper than %d levels", mostDepth)

// inode is a file or folder whatever its name: a command can rename what is above a mount.
type inode struct{ device, number uint64 }

func inodeOf(info fs.FileInfo) inode {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return inode{uint64(stat.Dev), stat.Ino}
	}
	return inode{}
}

// counter sums up what folders take of the disk, as `du` does: blocks, so that holes count nothing, and each file once
// however many links it has.
type counter struct {
	// mounted are folders that are mounts themselves, which somebody else counts.
	mounted map[inode]bool
	limit   int64
	most    int

	bytes   float64
	entries int
	// uncounted is why something that commands may have filled was not counted; nil if nothing was left out.
	uncounted error
	since     time.Time
}

// full is true once there is nothing more to find out.
func (c *counter) full() bool { return c.bytes > float64(c.limit) || c.entries > c.most }

// volume counts an open folder with all that is below.
func (c *counter) volume(one volume) {
	info, err := one.folder.Stat()
	if err != nil {
		c.missed(err)
		return
	}
	c.add(info)
	defer granted(info, one.folder, func(folder int, mode uint32) { _ = syscall.Fchmod(folder, mode) })()
	c.folder(one.root, 1)
}

// folder counts what lies in a folder. Names are looked up from the open folder: a path would get too long for the
// kernel, or lead elsewhere after a rename.
func (c *counter) folder(root *os.Root, depth int) {
	listing, err := root.Open(".")
	if err != nil {
		c.missed(err)
		return
	}
	defer listing.Close()
	for !c.full() {
		names, err := listing.Readdirnames(batch)
		for _, name := range names {
			c.entry(root, listing, name, depth)
			if c.full() {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			c.missed(err)
			return
		}
	}
}

func (c *counter) entry(root *os.Root, listing *os.File, name string, depth int) {
	c.rest()
	info, err := root.Lstat(name)
	if err != nil {
		c.missed(err)
		return
	}
	if c.mounted[inodeOf(info)] {
		return
	}
	c.add(info)
	if !info.IsDir() {
		return
	}
	if depth >= mostDepth {
		c.uncounted = errTooDeep
		return
	}
	defer granted(info, listing, func(parent int, mode uint32) { _ = syscall.Fchmodat(parent, name, mode, 0) })()
	below, err := root.OpenRoot(name)
	if err != nil {
		c.missed(err)
		return
	}
	defer below.Close()
	c.folder(below, depth+1)
}

func (c *counter) add(info fs.FileInfo) {
	c.entries++
	bytes := blocks(info)
	// All links of a file are within one mount, so that shares add up to the file. Unlike a list of the files that
	// were seen, they need no memory.
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && !info.IsDir() && stat.Nlink > 1 {
		bytes /= float64(stat.Nlink)
	}
	c.bytes += bytes
}

func blocks(info fs.FileInfo) float64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return float64(stat.Blocks) * blockBytes
	}
	return float64(info.Size())
}

// missed notes what could not be counted, unless that is nobody's doing: names that went or changed meanwhile, and
// folders of other users, in which the commands of this one can't write either.
func (c *counter) missed(err error) {
	var number syscall.Errno
	if !errors.As(err, &number) {
		return // a link took a folder's place
	}
	switch number {
	case syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.EACCES, syscall.EPERM:
	default:
		c.uncounted = err
	}
}

// rest keeps the walk to its share of the time.
func (c *counter) rest() {
	if worked := time.Since(c.since); worked >= slice {
		// No longer than planned though others took the processor away meanwhile.
		time.Sleep(restSlices * slice)
		c.since = time.Now()
	}
}

// granted gives the daemon's user its rights on a folder of its own, and returns what takes them away again: a command
// can hide nothing by taking them away. Root has no need of it, and must not: a link may have taken the folder's place.
func granted(info fs.FileInfo, file *os.File, set func(descriptor int, mode uint32)) func() {
	const needed = 0o500
	stat, ok := info.Sys().(*syscall.Stat_t)
	uid := os.Geteuid()
	if !ok || uid == 0 || int(stat.Uid) != uid || stat.Mode&needed == needed {
		return func() {}
	}
	to := func(mode uint32) {
		if raw, err := file.SyscallConn(); err == nil {
			_ = raw.Control(func(descriptor uintptr) { set(int(descriptor), mode) })
		}
	}
	was := stat.Mode & 0o7777
	to(was | needed)
	return func() { to(was) }
}

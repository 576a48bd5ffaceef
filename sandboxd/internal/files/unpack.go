package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"syscall"
)

// modeBits are those of a tar header that are set: permissions, set-user-id, set-group-id and sticky.
const modeBits = 0o7777

// ErrTar is a stream that is no tar.
var ErrTar = errors.New("the body is no tar stream")

// Unpacked counts what an archive held.
type Unpacked struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// unpacker unpacks one archive.
type unpacker struct {
	root  *os.Root
	owner Owner
	count Unpacked
	// folders get their modes and times at the end: one that is read-only would take no entries.
	folders []*tar.Header
}

// Unpack unpacks a tar stream below a folder, which is made if it is missing. What is in the way of an entry is
// replaced, but never a folder by a file.
func Unpack(stream io.Reader, folder string, owner Owner) (Unpacked, error) {
	if err := MakeAll(folder, owner); err != nil {
		return Unpacked{}, err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return Unpacked{}, err
	}
	defer root.Close()
	work := &unpacker{root: root, owner: owner}
	reader := tar.NewReader(stream)
	for {
		header, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return work.count, broken(err)
		}
		if err := work.entry(header, reader); err != nil {
			return work.count, err
		}
	}
	return work.count, work.finish()
}

func (u *unpacker) entry(header *tar.Header, content io.Reader) error {
	name, err := inside(header.Name)
	if err != nil {
		return err
	}
	if name == "." {
		return nil
	}
	parent, err := makeBelow(u.root, path.Dir(name), u.owner)
	if err != nil {
		return fmt.Errorf("the folder of %q: %w", header.Name, err)
	}
	defer parent.Close()
	base := path.Base(name)
	switch header.Typeflag {
	case tar.TypeDir:
		err = u.folder(header, name)
	case tar.TypeReg, tar.TypeGNUSparse:
		err = u.file(header, name, content)
	case tar.TypeSymlink:
		if err = u.clear(name); err == nil {
			err = symlinkAt(header.Linkname, parent, base)
		}
	case tar.TypeLink:
		err = u.link(header, name, parent)
	case tar.TypeXGlobalHeader:
		return nil
	default:
		err = fmt.Errorf("its type is %q: %w; only files, folders and links can", header.Typeflag, ErrEntry)
	}
	if err == nil && u.owner.Set && header.Typeflag != tar.TypeLink {
		err = lchownAt(parent, base, u.owner)
	}
	if err == nil && header.Typeflag == tar.TypeReg {
		// Only now: a change of owner takes set-user-id away.
		err = u.settle(header, name)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", header.Name, err)
	}
	u.count.Entries++
	return nil
}

func (u *unpacker) folder(header *tar.Header, name string) error {
	err := u.root.Mkdir(name, 0o755)
	if errors.Is(err, os.ErrExist) {
		info, statError := u.root.Stat(name)
		if statError == nil && info.IsDir() {
			err = nil
		} else if err = u.clear(name); err == nil {
			err = u.root.Mkdir(name, 0o755)
		}
	}
	if err != nil {
		return outside(name, err)
	}
	u.folders = append(u.folders, header)
	return nil
}

func (u *unpacker) file(header *tar.Header, name string, content io.Reader) error {
	if err := u.clear(name); err != nil {
		return err
	}
	file, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return outside(name, err)
	}
	written, err := io.Copy(file, content)
	u.count.Bytes += written
	if closing := file.Close(); err == nil {
		err = closing
	}
	return broken(err)
}

// settle gives a file its mode and time.
func (u *unpacker) settle(header *tar.Header, name string) error {
	file, err := u.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return outside(name, err)
	}
	defer file.Close()
	return errors.Join(syscallMode(file, header.Mode&modeBits), setModified(file, header.ModTime))
}

func (u *unpacker) link(header *tar.Header, name string, parent *os.File) error {
	target, err := inside(header.Linkname)
	if err != nil {
		return err
	}
	source, err := u.root.Open(path.Dir(target))
	if err != nil {
		return outside(header.Linkname, err)
	}
	defer source.Close()
	if target == name {
		return fmt.Errorf("it links to itself: %w", ErrEntry)
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return linkAt(source, path.Base(target), parent, path.Base(name))
}

// clear removes a file or a link that is in the way.
func (u *unpacker) clear(name string) error {
	info, err := u.root.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return outside(name, err)
	}
	if info.IsDir() {
		return fmt.Errorf("a folder is in its place: %w", ErrEntry)
	}
	return u.root.Remove(name)
}

// finish settles the folders, the innermost first as archives name them last.
func (u *unpacker) finish() error {
	for index := len(u.folders) - 1; index >= 0; index-- {
		header := u.folders[index]
		name := path.Clean(header.Name)
		folder, err := u.root.Open(name)
		if err != nil {
			return outside(name, err)
		}
		err = errors.Join(syscallMode(folder, header.Mode&modeBits), setModified(folder, header.ModTime))
		folder.Close()
		if err != nil {
			return fmt.Errorf("%q: %w", header.Name, err)
		}
	}
	return nil
}

func syscallMode(file *os.File, mode int64) error {
	return onFolder(file, func(descriptor uintptr) syscall.Errno {
		return errno(syscall.Fchmod(int(descriptor), uint32(mode)))
	})
}

// broken tells a bad archive from a caller that went away and a disk that is full.
func broken(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w, or it ends early: %v", ErrTar, err)
	}
	return err
}

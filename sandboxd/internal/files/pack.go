package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
)

// Archive is a file or folder that was opened for packing.
type Archive struct {
	root *os.Root
	// file is set instead when it is a single file.
	file *os.File
}

// Open finds what is to be packed, so that the caller hears of the usual mistakes before the first byte.
func Open(name string) (*Archive, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		file, _, err := Read(name)
		return &Archive{file: file}, err
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if folder, err := root.Open("."); err != nil {
		root.Close()
		return nil, err
	} else {
		folder.Close()
	}
	return &Archive{root: root}, nil
}

// Close ends it.
func (a *Archive) Close() {
	if a.file != nil {
		a.file.Close()
		return
	}
	a.root.Close()
}

// Pack writes the tar stream. Names are relative to the folder, links stay links; sockets, pipes and devices are left
// out, as are files that vanish meanwhile.
func (a *Archive) Pack(stream io.Writer) error {
	writer := tar.NewWriter(stream)
	var err error
	if a.file != nil {
		err = content(writer, a.file, filepath.Base(a.file.Name()))
	} else {
		err = a.folder(writer, ".")
	}
	if err != nil {
		return err
	}
	return writer.Close()
}

func (a *Archive) folder(writer *tar.Writer, name string) error {
	folder, err := a.root.Open(name)
	if err != nil {
		return vanished(err)
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return vanished(err)
	}
	slices.Sort(names)
	for _, base := range names {
		if err := a.entry(writer, folder, path.Join(name, base)); err != nil {
			return fmt.Errorf("%s: %w", path.Join(name, base), err)
		}
	}
	return nil
}

func (a *Archive) entry(writer *tar.Writer, parent *os.File, name string) error {
	info, err := a.root.Lstat(name)
	if err != nil {
		return vanished(err)
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		if err := head(writer, info, name+"/", ""); err != nil {
			return err
		}
		return a.folder(writer, name)
	case mode.IsRegular():
		// Should it have become a pipe, nobody waits for its other side.
		file, err := a.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return vanished(err)
		}
		defer file.Close()
		return content(writer, file, name)
	case mode&os.ModeSymlink != 0:
		target, err := readlinkAt(parent, path.Base(name))
		if err != nil {
			return vanished(err)
		}
		return head(writer, info, name, target)
	}
	return nil
}

func head(writer *tar.Writer, info os.FileInfo, name, target string) error {
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name = name
	// Users are the sandbox's own: their names mean nothing elsewhere.
	header.Uname, header.Gname = "", ""
	return writer.WriteHeader(header)
}

// content writes as many bytes as the header promised, though the file may change meanwhile.
func content(writer *tar.Writer, file *os.File, name string) error {
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if err := head(writer, info, name, ""); err != nil {
		return err
	}
	written, err := io.CopyN(writer, file, info.Size())
	if err == io.EOF {
		_, err = io.CopyN(writer, zeros{}, info.Size()-written)
	}
	return err
}

func vanished(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

type zeros struct{}

func (zeros) Read(buffer []byte) (int, error) {
	clear(buffer)
	return len(buffer), nil
}

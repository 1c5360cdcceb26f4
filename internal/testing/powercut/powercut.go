// Package powercut simulates power cuts on a real file system.
//
//	disk := powercut.New(t, 64<<20)
//	… start processes that write below disk.Path() …
//	disk.Cut(func() { … end those processes … })
//	… continue with what is on the disk now …
//
// A Disk is an ext4 file system on a loop device backed by a regular file. The file
// has what the file system has written to its device, and nothing that is only in
// the page cache. An atomic copy of it is therefore what a power cut at that instant
// leaves on a disk: data that was not synced is missing, and mounting the copy
// replays ext4's journal, as a boot does.
//
// The backing file is on an xfs file system of its own, whose FICLONE copies a file
// atomically while it is being written. The package requires root and the programs
// mkfs.xfs, mkfs.ext4 and mount.
package powercut

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// options are the mount options of the disk. ext4 commits its journal only when it is
// told to, not every five seconds, so that a cut loses everything that was not synced.
const options = "loop,commit=3600"

// minimumOuter is slightly more than the minimum size that mkfs.xfs accepts, in bytes.
const minimumOuter = 512 << 20

// Disk is a mounted file system whose power can be cut.
type Disk struct {
	t     testing.TB
	outer string // mount point of the xfs that holds the image
	image string
	path  string
}

// New creates an empty disk of the given size in bytes, at least 32 MiB. It is
// unmounted and removed when the test ends.
func New(t testing.TB, size int64) *Disk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("a power cut test mounts file systems: run it as root")
	}
	folder := t.TempDir()
	image, outer := filepath.Join(folder, "xfs.img"), filepath.Join(folder, "xfs")
	makeImage(t, image, max(4*size, minimumOuter))
	run(t, "mkfs.xfs", "-q", "-m", "reflink=1", image)
	mount(t, "loop", image, outer)
	d := &Disk{t: t, outer: outer, image: filepath.Join(outer, "disk.img"), path: filepath.Join(folder, "disk")}
	makeImage(t, d.image, size)
	// No lazy initialisation: it would write in the background for minutes.
	run(t, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.image)
	mount(t, options, d.image, d.path)
	return d
}

// Path returns the folder where the disk is mounted, before and after a cut.
func (d *Disk) Path() string { return d.path }

// Cut copies the disk atomically, calls end, which must end every process that uses
// the disk, and mounts the copy in its place. Processes may write until they end;
// the copy does not include what they write after the call.
//
// A process that acknowledges writes to others, for example over a network, must be
// stopped (SIGSTOP) before the call, since a real power cut ends everything at once.
func (d *Disk) Cut(end func()) {
	d.t.Helper()
	after := d.image + ".after"
	if err := clone(d.image, after); err != nil {
		d.t.Fatalf("copy the disk: %v", err)
	}
	end()
	if err := unix.Unmount(d.path, unix.MNT_DETACH); err != nil {
		d.t.Fatalf("unmount %s: %v", d.path, err)
	}
	if err := os.Rename(after, d.image); err != nil {
		d.t.Fatal(err)
	}
	run(d.t, "mount", "-o", options, d.image, d.path)
}

// clone copies a file atomically: the kernel blocks writers during the copy.
func clone(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := unix.IoctlFileClone(int(target.Fd()), int(source.Fd())); err != nil {
		target.Close()
		return fmt.Errorf("clone %s: %w", from, err)
	}
	return target.Close()
}

// makeImage creates a sparse file.
func makeImage(t testing.TB, path string, size int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// mount mounts an image on a loop device, which is freed when the image is unmounted.
func mount(t testing.TB, options, image, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "-o", options, image, path)
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", path, err)
		}
	})
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

package worktree

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// undecided reports whether a git that failed ended before it found anything of the objects
// that it read. One that is short of memory may have met an object whose size is damaged,
// for which it wants any amount.
func (r *Repo) undecided(err error) bool {
	return wasEnded(err) && (!outOfMemory.MatchString(stderrOf(err)) || !r.storeDamaged())
}

var errDamagedFile = errors.New("a file is not what its name or its checksum says")

// storeDamaged reads all files of objects of the repository, in little memory, and reports
// whether one of them cannot be read or is not what its name or its checksum says.
func (r *Repo) storeDamaged() bool {
	objects := filepath.Join(r.cfg.GitDir, "objects")
	err := filepath.WalkDir(objects, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !entry.Type().IsRegular() {
			return nil
		}
		if err != nil {
			return err
		}
		folder, name := filepath.Base(filepath.Dir(path)), filepath.Base(path)
		check := checkPack
		if id, err := hex.DecodeString(folder + name); err == nil && len(id) == sha1.Size {
			check = func(f io.Reader) error { return checkLoose(f, id) }
		} else if filepath.Ext(name) != ".pack" {
			return nil
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was packed meanwhile
		}
		if err != nil {
			return err
		}
		defer f.Close()
		return check(f)
	})
	return err != nil
}

// checkLoose checks an object that has a file of its own: its compressed content has the
// object's id (git's documentation, gitformat-loose).
func checkLoose(f io.Reader, id []byte) error {
	content, err := zlib.NewReader(f)
	if err != nil {
		return err
	}
	sum := sha1.New()
	if _, err := io.Copy(sum, content); err != nil {
		return err
	}
	return same(sum, id)
}

// checkPack checks that a pack ends with the checksum of what is before it (git's
// documentation, gitformat-pack).
func checkPack(f io.Reader) error {
	sum := sha1.New()
	buffer := make([]byte, 64<<10+sha1.Size)
	held := 0 // bytes that may be the checksum
	for {
		n, err := f.Read(buffer[held:])
		held += n
		if more := held - sha1.Size; more > 0 {
			sum.Write(buffer[:more])
			held = copy(buffer, buffer[more:held])
		}
		if errors.Is(err, io.EOF) {
			return same(sum, buffer[:held])
		}
		if err != nil {
			return err
		}
	}
}

func same(sum hash.Hash, want []byte) error {
	if !bytes.Equal(sum.Sum(nil), want) {
		return errDamagedFile
	}
	return nil
}

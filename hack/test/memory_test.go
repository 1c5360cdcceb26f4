package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFoldersOfOneCheckout checks that runs get one name, since cached results depend on it,
// and that a run beside another gets a folder of its own.
func TestFoldersOfOneCheckout(t *testing.T) {
	parent := t.TempDir()
	t.Chdir(t.TempDir())
	first, err := ownFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	beside, err := ownFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	if beside == first {
		t.Errorf("two runs share the folder %s", first)
	}

	if err := os.WriteFile(filepath.Join(first, "left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	elsewhere, err := ownFolder(parent)
	if err != nil {
		t.Fatal(err)
	}
	if elsewhere == first {
		t.Errorf("two checkouts share the folder %s", first)
	}
}

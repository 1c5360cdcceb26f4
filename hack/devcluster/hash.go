package main

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
)

// hashFiles returns the SHA-256 of the files' concatenated contents, in hex.
func hashFiles(paths ...string) (string, error) {
	h := sha256.New()
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func sha256Sum(data []byte) []byte {
	sum := sha256.Sum256(data)
	return sum[:]
}

// shortHash returns the beginning of a hash, long enough to name a cache entry.
func shortHash(data []byte) string { return hex.EncodeToString(sha256Sum(data))[:12] }

func goArch() string { return runtime.GOARCH }

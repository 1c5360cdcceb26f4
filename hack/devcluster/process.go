package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a pidfile's content. A pid alone says little once it has been
// given out again; with its start time and boot it names one process for good.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
	Boot  string `json:"boot"`
}

// spawn starts a program that outlives this one, in a session of its own, with
// its output at the end of logFile, and writes its pidfile.
func spawn(pidFile, logFile string, argv []string, env []string) error {
	for _, f := range []string{pidFile, logFile} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env, cmd.Dir = env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p, err := inspect(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("%s ended at once; see %s", argv[0], logFile)
	}
	// Reaping it keeps a program that dies at once from looking alive.
	go cmd.Wait()
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writeFile(pidFile, append(data, '\n'), 0o644)
}

// inspect describes the process that has pid now.
func inspect(pid int) (process, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	start, state, err := parseStat(string(stat))
	if err != nil {
		return process{}, err
	}
	if state == "Z" || state == "X" {
		return process{}, os.ErrProcessDone
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// parseStat reads a process's start time and state from /proc/<pid>/stat. The
// command's name, in brackets, may itself hold blanks and brackets.
func parseStat(stat string) (start uint64, state string, err error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, "", fmt.Errorf("/proc/<pid>/stat has %d fields after the name, not 20 or more: %q", len(fields), stat)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0], err
}

// readPID gives the process of a pidfile if that very process is alive.
func readPID(pidFile string) (process, bool) {
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return process{}, false
	}
	var p process
	if json.Unmarshal(data, &p) != nil || p.PID <= 1 {
		return process{}, false
	}
	return p, p.alive()
}

func (p process) alive() bool {
	now, err := inspect(p.PID)
	return err == nil && now == p
}

// stop ends the process politely, and after patience by force. It waits until
// the process is gone.
func (p process) stop(patience time.Duration) error {
	return p.end(patience, syscall.SIGTERM, syscall.SIGKILL)
}

// end sends one signal after the other, with patience after each, until the
// process is gone.
func (p process) end(patience time.Duration, signals ...syscall.Signal) error {
	for _, sig := range signals {
		if !p.alive() {
			return nil
		}
		if err := syscall.Kill(p.PID, sig); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("process %d: %w", p.PID, err)
		}
		for end := time.Now().Add(patience); p.alive() && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
	}
	if p.alive() {
		return fmt.Errorf("process %d does not end, not even by SIGKILL", p.PID)
	}
	return nil
}

// Package examples holds complete programs: see the folders.
package examples
